"""One page, one file: `show()` draws it. app.py names them; importing one does nothing."""
