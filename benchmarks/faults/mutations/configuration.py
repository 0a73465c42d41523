"""Configuration files: every section and every plugin's table, mutated, read as each command reads them, and given to the plugins."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from eagle_eye import config as configuration
from eagle_eye.app import config_file, plugin_wiring
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError, PluginError

from .mutation import Mutation
from .target import Tally, Target

SERVICES = {"commander": None, "ledger": None, "clock": FakeClock()}


class Files:
    """One file after the other."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "eagle-eye.toml"
        self._whole = config_file.generate()
        self._tables = msgspec.toml.decode(self._whole)
        self._tables["detectors"]["own"] = {"use": "detectors.stall:Stall", "enabled": True, "late_ticks": 3}
        self._tables["actions"]["notify"]["receivers"] = [{"kind": "slack", "name": "team", "url": "https://hooks.example/x", "min_severity": "sev2", "every_s": 60.0, "labels": {"a": "b"}}]
        self._refused = self._told = 0

    def take(self, random: Random) -> None:
        self._path.write_bytes(self._mutated(Mutation(random)))
        try:
            config = configuration.load(self._path)
            configuration.check(config, str(self._path))
            plugin_wiring.check(config, str(self._path))
            self._use(config)
        except (ConfigError, PluginError) as error:
            self._refused += 1
            self._told += bool(str(error))

    def tally(self) -> Tally:
        return Tally(self._refused, self._told)

    @staticmethod
    def _use(config: Config) -> None:
        """What server, agent and commands make of it."""
        _ = config.digest, config.state, config.run
        plugin_wiring.detectors(config)
        plugin_wiring.guards(config)
        plugin_wiring.policy(config)
        plugin_wiring.actions(config, SERVICES)
        msgspec.json.decode(msgspec.json.encode(config), type=Config)  # as the dashboard is given it

    def _mutated(self, mutation: Mutation) -> bytes:
        random = mutation.random
        if random.random() < 0.15:
            return mutation.data(self._whole.encode())
        tables: dict[str, Any] = {name: value for name, value in self._tables.items() if random.random() < 0.3}
        for plugins in set(tables) & set(plugin_wiring.TABLES):
            some = [name for name in tables[plugins] if random.random() < 0.3]
            tables[plugins] = {name: tables[plugins][name] for name in some}
        for _ in range(random.choice((1, 1, 2))):
            tables = mutation.tree(tables, "toml")
            if not isinstance(tables, dict):
                tables = {"server": tables}
        try:
            return msgspec.toml.encode(tables)
        except (TypeError, ValueError, AttributeError, RecursionError):  # TOML holds no such thing
            return mutation.data(self._whole.encode())


@contextmanager
def files(folder: Path) -> Iterator[Files]:
    """In the folder."""
    yield Files(folder)


TARGET = Target("configuration", "configuration files, read and given to every plugin", files)
