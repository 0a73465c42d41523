"""`eagle-eye approve`."""

from eagle_eye.app.deciding import deciding

command = deciding("approve", approved=True)
