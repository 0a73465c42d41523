"""Entry point of the command `eagle-eye`. Where only the probe is installed, it names the missing package."""

import os
import sys


def main() -> None:
    """Run the command, or exit with the name of the missing package."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own messages report its errors
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"eagle-eye: the package {error.name!r} is missing. The probe needs none; for the commands: pip install 'eagle-eye[server]'")
    run()
