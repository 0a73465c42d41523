"""The command `eagle-eye`, also where only the probe is installed: there it says what it needs."""

import os
import sys


def main() -> None:
    """Run the command, or say which packages are missing."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong there is told in our own words
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"eagle-eye: the package {error.name!r} is missing. The probe needs none; for the commands: pip install 'eagle-eye[server]'")
    run()
