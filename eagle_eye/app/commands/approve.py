"""`eagle-eye approve`."""

from eagle_eye.app.approval_prompt import decision_command

command = decision_command("approve", approved=True, short_help="approve a pending plan")
