"""One typed configuration, one TOML file per deployment.

Found as `eagle-eye.toml` in the working directory, else `/etc/eagle-eye/config.toml`, else the
defaults below. A wrong type or an unknown key refuses the whole file, naming the key.
"""

import os
from pathlib import Path
from typing import Any, Literal

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
    addresses: str = ""
    """host:port of every server that may lead, with commas: where launchers, agents and commands look for the one that does. Default: server.listen."""
    insecure: bool = False
    """Listen beyond loopback without authentication. Only on a network that you trust wholly."""
    lease_s: float = 2.0
    """Seconds of silence after which a session counts as lost, and a leader's term as over."""
    role: Literal["all", "detect", "lead"] = "all"
    """detect: read partitions of the stream and diagnose; lead: decide and command; all: both in one process."""
    http: str = "127.0.0.1:7468"
    """host:port of the one HTTP port: /metrics, /healthz, hooks, approvals. Empty: none."""
    public_url: str = ""
    """How a person's browser reaches the HTTP port: the beginning of links in alerts. Default: http://<server.http>."""
    dashboard_url: str = "http://127.0.0.1:8501"
    """How a person's browser reaches `eagle-eye dashboard`: /incidents/<id> of the HTTP port leads there."""

    @property
    def known_at(self) -> str:
        """Where others look for the leader."""
        return self.addresses or self.listen


class KafkaConfig(Section, frozen=True, kw_only=True):
    """A Kafka cluster as the stream of many machines."""

    brokers: str = ""
    """host:port, several with commas. Empty: the embedded stream."""
    replication: int = -1
    """Replicas of a topic that is made; -1: the broker's default."""
    compression: Literal["lz4", "zstd", "gzip", "none"] = "lz4"
    """Of batches."""
    security: Literal["plaintext", "tls", "sasl", "sasl_tls"] = "plaintext"
    """plaintext, tls (server checked, and we by certificate_file if given), sasl (password, no encryption), sasl_tls."""
    ca_file: str = ""
    """PEM of the authority that signed the brokers' certificates; empty: the system's."""
    certificate_file: str = ""
    """PEM of our own certificate."""
    key_file: str = ""
    """PEM of its key."""
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    """Of SASL."""
    user: str = ""
    """Of SASL."""
    password_file: str = ""
    """File with its password; else the variable EAGLE_EYE_KAFKA_PASSWORD."""
    timeout_s: float = 10.0
    """A record that no broker has acknowledged by then makes the stream count as away."""


class StreamConfig(Section, frozen=True, kw_only=True):
    """The stream: an ordered log, on disk for the processes of one machine, or in Kafka for many."""

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
    kafka: KafkaConfig = KafkaConfig()


class LedgerConfig(Section, frozen=True, kw_only=True):
    """The ledger: incidents, plans, outcomes, approvals, and who leads."""

    url: str = ""
    """postgresql://user@host/database. Empty: ledger.sqlite in the state directory."""
    password_file: str = ""
    """File with the database's password; else the variable EAGLE_EYE_LEDGER_PASSWORD."""
    retention_s: float = 90 * 86_400.0
    """Seconds for which ended incidents, old findings and notices are kept."""


class HistoryConfig(Section, frozen=True, kw_only=True):
    """The history: every number, in Parquet files that DuckDB reads."""

    enabled: bool = True
    """False: nothing is kept beyond the stream's own retention."""
    place: str = ""
    """A directory, or an fsspec URL of an object store. Default: history in the state directory."""
    file_s: float = 30.0
    """Seconds of telemetry in one new file."""
    compact_s: float = 3600.0
    """Small files of so many seconds are made into one."""
    retention_s: float = 14 * 86_400.0
    """Seconds for which numbers are kept."""
    max_bytes: int = 64 << 30
    """Bytes that the history may take; the oldest go first."""


class AccessConfig(Section, frozen=True, kw_only=True):
    """Who may connect, and as what."""

    ca_file: str = ""
    """PEM of the authority of the control channel (`eagle-eye certs` makes one): with it, both sides must show a certificate."""
    certificate_file: str = ""
    """PEM of this process's certificate. `{node}` in a name stands for the node's name, so that all nodes may share one configuration."""
    key_file: str = ""
    """PEM of its key."""
    tokens_file: str = ""
    """TOML of the people's tokens and roles, hashed (`eagle-eye token`). Default: tokens/tokens.toml in the state directory, if it is there."""
    token_file: str = ""
    """File with this process's own token, for commands; else the variable EAGLE_EYE_TOKEN."""


class HooksConfig(Section, frozen=True, kw_only=True):
    """What comes in over the HTTP port: /hooks/alertmanager."""

    token_file: str = ""
    """File with a token that opens the hooks alone; else the variable EAGLE_EYE_HOOKS_TOKEN. An operator's opens them too."""
    job_labels: tuple[str, ...] = ("eagle_eye_job",)
    """Labels of an alert that may name a job of ours (tenant/name/run), the first that is there counts. (Prometheus' own `job` is another thing.)"""
    node_labels: tuple[str, ...] = ("node", "Hostname", "hostname", "host", "instance")
    """Labels that may name a node; a port behind the name does not count."""
    gpu_labels: tuple[str, ...] = ("UUID", "gpu_uuid")
    """Labels that may name a GPU, by its UUID."""
    max_bytes: int = 4 << 20
    """Of the body of one request."""


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
    ledger: LedgerConfig = LedgerConfig()
    history: HistoryConfig = HistoryConfig()
    access: AccessConfig = AccessConfig()
    hooks: HooksConfig = HooksConfig()
    engine: Options = {}
    """What may be done and how the outcome is judged: remediation/policy/engine_settings.py."""
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
    check(config, name)
    return config


def check(config: Config, name: str) -> None:
    """Raise ConfigError for a value that cannot be used; `name` is the file's."""
    positive = {
        "server.lease_s": config.server.lease_s,
        "stream.partitions": config.stream.partitions,
        "stream.retention_s": config.stream.retention_s,
        "stream.kafka.timeout_s": config.stream.kafka.timeout_s,
        "agent.batch_s": config.agent.batch_s,
        "history.file_s": config.history.file_s,
        "history.retention_s": config.history.retention_s,
        "ledger.retention_s": config.ledger.retention_s,
    }
    for key, value in positive.items():
        if value <= 0:
            raise ConfigError(f"{name}: {key} is {value}; it must be above zero.")
    addresses = [("addresses", each.strip()) for each in config.server.addresses.split(",") if each]
    for key, address in (("listen", config.server.listen), ("http", config.server.http or "none:0"), *addresses):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit():
            raise ConfigError(f"{name}: server.{key} is {address!r}; write it as host:port, e.g. 127.0.0.1:7467.")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}. Make it with `eagle-eye config init > {path}`.") from error
