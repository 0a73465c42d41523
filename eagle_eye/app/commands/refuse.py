"""`eagle-eye refuse`."""

from eagle_eye.app.approval_prompt import deciding

command = deciding("refuse", approved=False)
