"""The command `eagle-eye`: finds its subcommands by file name in `commands/`, loads only the one asked for."""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import click

from eagle_eye.errors import EagleEyeError
from eagle_eye.parent_death import end_with_parent

from . import commands


class Commands(click.Group):
    """A group whose members are the modules of `commands/`; each holds one `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Names of the files in `commands/`."""
        folder = Path(next(iter(commands.__path__)))
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules([str(folder)]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The `command` in a file; nothing else is imported."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f".commands.{cmd_name.replace('-', '_')}", __package__)
        found: click.Command = module.command
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Turn our own errors into one line on stderr; a bug keeps its traceback."""
        try:
            return super().invoke(ctx)
        except EagleEyeError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def main() -> None:
    """Watch LLM training jobs, say what went wrong, heal the live job.

    \b
    Start here:
      eagle-eye doctor                                          what works on this machine
      eagle-eye run --nproc-per-node 4 -- python train.py       one machine, everything included
      eagle-eye incidents                                       what happened, why, and what was done
    """


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
