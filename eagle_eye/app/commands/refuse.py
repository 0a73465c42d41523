"""`eagle-eye refuse`."""

from eagle_eye.app.deciding import deciding

command = deciding("refuse", approved=False)
