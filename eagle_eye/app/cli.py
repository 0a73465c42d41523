"""The command `eagle-eye`: finds its subcommands by file name in `commands/`, loads only the one asked for."""

import ast
import difflib
import errno
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import click

from eagle_eye.errors import EagleEyeError
from eagle_eye.parent_death import end_with_parent
from eagle_eye.training.object_path import SCHEME
from eagle_eye.writable_text import printable

from . import commands

NOT_USABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO}
)
"""Errors of a file that are the machine's or the operator's to mend, and no bug."""
OTHER_NAMES = {"blame": "collectives"}
"""What people also type, and the command that it is."""


class Commands(click.Group):
    """A group whose members are the modules of `commands/`; each holds one `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Names of the files in `commands/`."""
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules([str(_folder())]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The `command` in a file; nothing else is imported."""
        cmd_name = OTHER_NAMES.get(cmd_name, cmd_name)
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f".commands.{_module_of(cmd_name)}", __package__)
        found: click.Command = module.command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line for each command, read from its file: to import them all would take a second."""
        rows = [(name, short_help(_folder() / f"{_module_of(name)}.py")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the commands whose names are like one that does not exist."""
        near = difflib.get_close_matches(args[0], self.list_commands(ctx))
        if near and near[0] != args[0] and args[0] not in OTHER_NAMES and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Turn our own errors, and a file or an object store that cannot be used, into one line on stderr; a bug keeps its traceback."""
        try:
            return super().invoke(ctx)
        except EagleEyeError as error:
            raise click.ClickException(printable(str(error), keep="\n\t")) from error
        except OSError as error:
            if isinstance(error.filename, str) and SCHEME in error.filename:
                raise click.ClickException(printable(f"{error.filename}: {error.strerror}")) from error
            if error.filename is None or error.errno not in NOT_USABLE:
                raise
            raise click.ClickException(f"{error.filename}: {error.strerror}. {_remedy(error)}") from error


def _folder() -> Path:
    return Path(next(iter(commands.__path__)))


def _module_of(name: str) -> str:
    return name.replace("-", "_")


def short_help(path: Path) -> str:
    """The literal `short_help` in a command's file, which is not imported; '' if it has none."""
    calls = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
    literals = (ast.literal_eval(word.value) for call in calls for word in call.keywords if word.arg == "short_help")
    return next(literals, "")


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space there, or name another directory with --state-dir."
    return "Run the command as the user that owns it, or name another directory with --state-dir or --run-dir."


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
