"""`eagle-eye refuse`."""

from eagle_eye.app.approval_prompt import decision_command

command = decision_command("refuse", approved=False, short_help="refuse a pending plan")
