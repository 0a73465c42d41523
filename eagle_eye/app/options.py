"""Options that several commands share."""

from collections.abc import Callable
from typing import Any

import click

from eagle_eye import config as configuration

Function = Callable[..., Any]


def deployment(function: Function) -> Function:
    """Add --config, --state-dir and --run-dir; the command receives the loaded `config`."""

    @click.option("--config", "config_path", type=click.Path(), help="Configuration file. Default: ./eagle-eye.toml, else /etc/eagle-eye/config.toml.")
    @click.option("--state-dir", default="", help="What outlives a restart: stream, ledger, checkpoints.")
    @click.option("--run-dir", default="", help="Sockets and the list of running jobs of this node.")
    def with_config(*args: Any, config_path: str | None, state_dir: str, run_dir: str, **kwargs: Any) -> Any:
        loaded = configuration.load(config_path, state_dir=state_dir, run_dir=run_dir)
        return function(*args, config=loaded, **kwargs)

    with_config.__doc__ = function.__doc__
    with_config.__name__ = function.__name__
    with_config.__click_params__ = getattr(function, "__click_params__", []) + with_config.__click_params__  # type: ignore[attr-defined]
    return with_config


as_json = click.option("--json", "json_lines", is_flag=True, help="Print the structs of eagle_eye/types.py as JSON, one a line.")
