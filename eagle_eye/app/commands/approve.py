"""`eagle-eye approve`."""

from eagle_eye.app.approval_prompt import deciding

command = deciding("approve", approved=True)
