"""Builds the plugins of each process from one configuration."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from collectors.agent.schedule import ScheduleOptions
from detectors.metric_rules import MetricRules
from eagle_eye import plugins
from eagle_eye.app.log_writer import LogWriter
from eagle_eye.config import Config, Options
from eagle_eye.errors import ConfigError, PluginError
from eagle_eye.protocols import Action, Detector, Guard
from remediation import guards as guard_room
from remediation.actions.notify import Notify
from remediation.alerts.receiver import Receiver
from remediation.policy.engine_settings import EngineSettings

TABLES = {"collectors": "collectors", "detectors": "detectors", "guards": "remediation.guards", "actions": "remediation.actions"}
"""Table of the configuration → package of the plugins."""
PROBLEMS_TOLD = 20
"""Mistakes in packs of rules that are told one by one: a file of another kind may have thousands."""
SCHEDULE = tuple(option.name for option in plugins.describe(ScheduleOptions))


def make_directories(config: Config) -> None:
    """State and run directory; new ones are for this user alone: they hold logs, stacks and the sockets of jobs. Raises ConfigError."""
    for option, path in (("--state-dir", config.state), ("--run-dir", config.run)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path} cannot be made ({error.filename}: {error.strerror}). Make it for this user, or name another directory with {option}.") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(f"{path} is not writable: run the command as the user that owns it, or name another directory with {option}.")


def log_to_stderr() -> None:
    """One line a record: date, time with milliseconds, level, the file that wrote it."""
    if not logging.getLogger().handlers:  # else whoever has called us has its own
        logging.basicConfig(handlers=[LogWriter()], level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)-7s %(module)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("alembic").setLevel(logging.WARNING)  # a new ledger is no news to an operator


def chosen(config: Config, table: str) -> Iterator[tuple[str, type, Options]]:
    """(name, class, options) of the plugins of a table that are not switched off. Raises PluginError."""
    return plugins.chosen(TABLES[table], getattr(config, table))


def detectors(config: Config) -> list[tuple[str, Detector]]:
    """Every detector. Raises PluginError."""
    return [(name, plugins.build(cls, options, {"stall": config.stall})) for name, cls, options in chosen(config, "detectors")]


def configured_packs(config: Config) -> tuple[Path, ...]:
    """Packs of rules that the configuration names. Raises PluginError where the detector's options are wrong."""
    for _, cls, options in chosen(config, "detectors"):
        if issubclass(cls, MetricRules):
            return tuple(plugins.configure(cls, options).get("packs", ()))
    return ()


def rule_problems(found: Iterable[tuple[str, Detector]]) -> tuple[str, ...]:
    """What is wrong with packs of rules, with file and line; the detectors go on with the other rules."""
    problems = [problem for _, detector in found if isinstance(detector, MetricRules) for problem in detector.problems]
    further = len(problems) - PROBLEMS_TOLD
    return (*problems[:PROBLEMS_TOLD], *((f"and {further} further mistakes in packs of rules",) if further > 0 else ()))


def guards(config: Config) -> list[Guard]:
    """The guards in the order of the written-out policy, then the user's own. Raises PluginError."""
    order = {name: position for position, name in enumerate(guard_room.POLICY)}
    found = sorted(chosen(config, "guards"), key=lambda each: order.get(each[0], len(order)))
    return [plugins.build(cls, options, {}) for _, cls, options in found]


def actions(config: Config, services: Mapping[str, Any]) -> dict[str, Action]:
    """Every action by name. Raises PluginError."""
    return {name: plugins.build(cls, options, services) for name, cls, options in chosen(config, "actions")}


def receivers(config: Config) -> tuple[Receiver, ...]:
    """The receivers of notifications; none if the action `notify` is switched off. Raises PluginError."""
    for name, cls, options in chosen(config, "actions"):
        if name == "notify" and issubclass(cls, Notify):
            notify: Notify = plugins.build(cls, options, {"ledger": None, "clock": None})  # neither is used to look at its options
            return notify.everybody
    return ()


def policy(config: Config) -> EngineSettings:
    """What may be done, from the table [engine]. Raises PluginError naming the option that is wrong."""
    built: EngineSettings = plugins.build(EngineSettings, config.engine, {})
    return built


def check(config: Config, name: str) -> None:
    """Raise ConfigError with everything that is wrong with the options of the plugins; `name` is the file's."""
    problems = [*(problem for table in TABLES for problem in _problems_of(config, table)), *_problems_of_policy(config)]
    if problems:
        raise ConfigError(f"{name}: {'; '.join(problems)}. `eagle-eye config init` prints every option with its meaning.")


def _problems_of(config: Config, table: str) -> Iterator[str]:
    try:
        for name, cls, options in chosen(config, table):
            timed = SCHEDULE if table == "collectors" else ()
            try:
                plugins.configure(ScheduleOptions, {key: options.pop(key) for key in timed if key in options})
                plugins.configure(cls, options)
            except PluginError as error:
                yield f"[{table}.{name}] {error}"
    except PluginError as error:
        yield f"[{table}] {error}"


def _problems_of_policy(config: Config) -> Iterator[str]:
    try:
        policy(config)
    except PluginError as error:
        yield f"[engine] {error}"
