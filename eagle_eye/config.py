"""One typed configuration, one TOML file per deployment.

Found as `eagle-eye.toml` in the working directory, else `/etc/eagle-eye/config.toml`, else the
defaults below. A wrong type or an unknown key refuses the whole file, naming the key.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from .errors import ConfigError
from .types import digest_of

SEARCHED = (Path("eagle-eye.toml"), Path("/etc/eagle-eye/config.toml"))
Options = dict[str, Any]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; each field is explained by the text below it."""


class ServerConfig(Section, frozen=True, kw_only=True):
    """The server: detection, diagnosis, engine and control channel."""

    listen: str = "127.0.0.1:7467"
    """host:port of the control channel. Beyond loopback it refuses to start unless `insecure` is true."""
    insecure: bool = False
    """Listen beyond loopback without authentication. Only on a network that you trust wholly."""
    lease_s: float = 2.0
    """Seconds of silence after which a session counts as lost, and a leader's term as over."""


class StreamConfig(Section, frozen=True, kw_only=True):
    """The embedded stream: an ordered log on disk, shared by the processes of one machine."""

    partitions: int = 1
    """Partitions of the topic of observations."""
    retention_s: float = 86_400.0
    """Seconds for which records are kept."""
    max_bytes: int = 8 << 30
    """Bytes that one partition may take; the oldest records go first."""
    fsync_interval_s: float = 1.0
    """Seconds between two fsyncs: what a power cut may cost. A killed process costs nothing."""
    spool_bytes: int = 256 << 20
    """Bytes that an agent or launcher may spool while the stream is away."""


class AgentConfig(Section, frozen=True, kw_only=True):
    """The agent of a node."""

    batch_s: float = 1.0
    """Seconds between two batches."""
    stall_poll_s: float = 0.2
    """Seconds between two looks at the workers' progress."""
    idle: bool = False
    """True: this node has no job and should report as idle."""


class Config(Section, frozen=True, kw_only=True):
    """A deployment."""

    state_dir: str = ""
    """Everything that outlives a restart. Default: $XDG_STATE_HOME/eagle-eye, else ~/.local/state/eagle-eye."""
    run_dir: str = ""
    """Sockets and the list of running jobs, one directory per node. Default: /run/eagle-eye, else $XDG_RUNTIME_DIR/eagle-eye, else state_dir/run."""
    server: ServerConfig = ServerConfig()
    stream: StreamConfig = StreamConfig()
    agent: AgentConfig = AgentConfig()
    engine: Options = {}
    """What may be done and how the outcome is judged: remediation/policy.py."""
    collectors: dict[str, Options] = {}
    """One table per collector, [collectors.NAME]; `enabled = false` leaves it out."""
    detectors: dict[str, Options] = {}
    """One table per detector, [detectors.NAME]; `enabled = false` leaves it out, `use = "pkg.mod:Name"` brings your own."""
    guards: dict[str, Options] = {}
    """One table per guard, [guards.NAME]."""
    actions: dict[str, Options] = {}
    """One table per action, [actions.NAME]."""

    @property
    def digest(self) -> str:
        return digest_of(msgspec.to_builtins(self))

    @property
    def state(self) -> Path:
        """The state directory, resolved."""
        if self.state_dir:
            return Path(self.state_dir).expanduser().absolute()
        home = os.environ.get("XDG_STATE_HOME", "~/.local/state")
        return (Path(home) / "eagle-eye").expanduser().absolute()

    @property
    def run(self) -> Path:
        """The runtime directory, resolved: the first candidate that this user may write to."""
        if self.run_dir:
            return Path(self.run_dir).expanduser().absolute()
        if os.access("/run", os.W_OK):
            return Path("/run/eagle-eye")
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        return Path(runtime) / "eagle-eye" if runtime else self.state / "run"


def load(path: str | os.PathLike[str] | None = None, **overrides: str) -> Config:
    """Read a deployment's file; `overrides` (state_dir, run_dir) win when not empty.

    Raises ConfigError for a file that is missing, no TOML, of a wrong type or with an unknown key.
    """
    found = Path(path) if path else next((candidate for candidate in SEARCHED if candidate.is_file()), None)
    config = parse(_read(found), str(found)) if found else Config()
    changes = {name: value for name, value in overrides.items() if value}
    return msgspec.structs.replace(config, **changes) if changes else config


def parse(text: str, name: str = "eagle-eye.toml") -> Config:
    """Check a file's text as a whole. Raises ConfigError naming the key that is wrong.

    >>> parse("[agent]\\nidle = true").agent.idle
    True
    """
    try:
        config = msgspec.toml.decode(text, type=Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}. `eagle-eye config init` prints every key with its type and default.") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}. Mend the line, or start from `eagle-eye config init`.") from error
    _check(config, name)
    return config


def _check(config: Config, name: str) -> None:
    positive = {
        "server.lease_s": config.server.lease_s,
        "stream.partitions": config.stream.partitions,
        "stream.retention_s": config.stream.retention_s,
        "agent.batch_s": config.agent.batch_s,
    }
    for key, value in positive.items():
        if value <= 0:
            raise ConfigError(f"{name}: {key} is {value}; it must be above zero.")
    host, colon, port = config.server.listen.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise ConfigError(f"{name}: server.listen is {config.server.listen!r}; write it as host:port, e.g. 127.0.0.1:7467.")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}. Make it with `eagle-eye config init > {path}`.") from error
