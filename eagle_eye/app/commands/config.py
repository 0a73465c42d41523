"""`eagle-eye config init | check`."""

import click

from eagle_eye import config as configuration


@click.group(short_help="print or check a configuration")
def command() -> None:
    """Print a commented configuration, or check one as a whole."""


@command.command(short_help="print every key with its default and meaning")
def init() -> None:
    """Print a configuration in which every field is explained.

    \b
    Example:
      eagle-eye config init > eagle-eye.toml
    """
    from eagle_eye.app.config_file import generate

    click.echo(generate(), nl=False)


@command.command(short_help="check a file: types, keys, plugins and their options")
@click.argument("path", default="eagle-eye.toml")
def check(path: str) -> None:
    """Check PATH as the server would at its start. Prints the digest when it is fine.

    \b
    Example:
      eagle-eye config check eagle-eye.toml
    """
    from eagle_eye.app import plugin_wiring

    config = configuration.load(path)
    plugin_wiring.check(config, path)
    click.echo(f"{path} is fine (digest {config.digest}, mode {plugin_wiring.policy(config).mode})")
