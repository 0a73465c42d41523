"""One typed configuration, one TOML file per deployment.

Found as `eagle-eye.toml` in the working directory, else `/etc/eagle-eye/config.toml`, else the
defaults below. A wrong type or an unknown key rejects the whole file with an error that names the key.
"""

import difflib
import errno
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from .errors import ConfigError
from .hostlist import hosts_of
from .ports import address_problem
from .ranges import (
    Bytes,
    Count,
    Delay,
    Hours,
    LongSeconds,
    Megabytes,
    Percent,
    Price,
    Ratio,
    Seconds,
    Share,
    Steps,
    StepsKept,
)
from .text_file import read_text
from .types import digest_of
from .types.entity import Name

SEARCHED = (Path("eagle-eye.toml"), Path("/etc/eagle-eye/config.toml"))
Options = dict[str, Any]
UNKNOWN_KEY = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `\$\.([^`]+)`)?$")
NO_TABLE = re.compile(r"Expected `object`, got `\w+` - at `\$\.(\w+)\[\.\.\.\]`$")
"""What msgspec says of a key that no table has, and of a plugin's table that is none."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; `eagle-eye config init` prints the text below each field."""


def _check_address(key: str, address: str) -> None:
    if problem := address_problem(address):
        raise ValueError(f"server.{key} is {address!r}; {problem}")


class ServerConfig(Section, frozen=True, kw_only=True):
    """The server: detection, diagnosis, engine and control channel."""

    listen: str = "127.0.0.1:7467"
    """host:port of the control channel. On other addresses than loopback the server needs certificates ([access]) or `insecure = true`."""
    addresses: str = ""
    """host:port of all servers with the lead role, comma-separated; launchers, agents and commands find the leader among them. Default: server.listen."""
    insecure: bool = False
    """Listen on other addresses than loopback without authentication. Use it on a trusted network only."""
    lease_s: Seconds = 2.0
    """Lease time in seconds: after so long without a heartbeat a session counts as lost, and another server may lead."""
    role: Literal["all", "detect", "lead"] = "all"
    """detect: run detectors and diagnosis on partitions of the stream; lead: decide and act; all: both in one process."""
    http: str = "127.0.0.1:7468"
    """host:port of the one HTTP port: /metrics, /healthz, hooks, approvals. Empty: none."""
    public_url: str = ""
    """Base URL of the HTTP port as browsers reach it, used for links in alerts. Default: http://<server.http>."""
    dashboard_url: str = "http://127.0.0.1:8501"
    """Base URL of `eagle-eye dashboard` as browsers reach it; /incidents/<id> of the HTTP port redirects there."""

    def __post_init__(self) -> None:
        named = {"listen": [self.listen], "http": [self.http] if self.http else [], "addresses": self.addresses.split(",") if self.addresses else []}
        for key, addresses in named.items():
            for address in addresses:
                _check_address(key, address.strip())

    @property
    def known_at(self) -> str:
        """Addresses at which other processes find the leader."""
        return self.addresses or self.listen


class KafkaConfig(Section, frozen=True, kw_only=True):
    """Kafka as the stream of a deployment on many machines."""

    brokers: str = ""
    """host:port of the bootstrap brokers, comma-separated. Empty: the embedded stream."""
    replication: Annotated[int, msgspec.Meta(ge=-1, le=100)] = -1
    """Replication factor of new topics; -1: the broker's default."""
    compression: Literal["lz4", "zstd", "gzip", "none"] = "lz4"
    """Compression of record batches."""
    security: Literal["plaintext", "tls", "sasl", "sasl_tls"] = "plaintext"
    """plaintext; tls (mutual with certificate_file); sasl (password, no encryption); sasl_tls."""
    ca_file: str = ""
    """PEM of the authority that signed the brokers' certificates; empty: the system's."""
    certificate_file: str = ""
    """PEM of the client certificate."""
    key_file: str = ""
    """PEM of the client certificate's key."""
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    """SASL mechanism."""
    user: str = ""
    """SASL user."""
    password_file: str = ""
    """File with the SASL password; else the variable EAGLE_EYE_KAFKA_PASSWORD."""
    insecure: bool = False
    """Use `plaintext` with brokers on other machines. On a trusted network only: everyone on it can read and write the records."""
    timeout_s: Seconds = 10.0
    """Seconds for a broker to acknowledge a record; after that the stream counts as unavailable and records are spooled."""


class StreamConfig(Section, frozen=True, kw_only=True):
    """The stream: an ordered log, on disk for the processes of one machine, or in Kafka for many."""

    partitions: Count = 1
    """Partitions of the topic of observations."""
    fetchers: Annotated[int, msgspec.Meta(ge=-1, le=64)] = -1
    """Processes that read and check the records of each partition for the one that evaluates it, with Kafka; -1: as many as the rate of its records asks for (none under 2,000 a second), 0: none."""
    retention_s: LongSeconds = 86_400.0
    """Seconds for which records are kept."""
    max_bytes: Bytes = 8 << 30
    """Maximum size of one partition; the oldest records are deleted first."""
    fsync_interval_s: Delay = 1.0
    """Seconds between two fsyncs: the most that a power cut may lose. A killed process loses nothing."""
    spool_bytes: Bytes = 256 << 20
    """Maximum size of the spool of an agent or launcher while the stream is unavailable."""
    kafka: KafkaConfig = KafkaConfig()


class LedgerConfig(Section, frozen=True, kw_only=True):
    """The ledger: incidents, plans, outcomes, approvals and leases."""

    url: str = ""
    """postgresql://user@host/database. Empty: ledger.sqlite in the state directory."""
    password_file: str = ""
    """File with the database's password; else the variable EAGLE_EYE_LEDGER_PASSWORD."""
    retention_s: LongSeconds = 90 * 86_400.0
    """Seconds for which ended incidents, old findings and notices are kept."""


class HistoryConfig(Section, frozen=True, kw_only=True):
    """The history: all metrics, in Parquet files that DuckDB reads."""

    enabled: bool = True
    """False: metrics are kept only as long as the stream keeps its records."""
    location: str = ""
    """A directory, or an fsspec URL of an object store. Default: history in the state directory."""
    file_s: Seconds = 30.0
    """Seconds of telemetry per new file."""
    compact_s: Seconds = 3600.0
    """Small files are compacted into one file per so many seconds."""
    retention_s: LongSeconds = 14 * 86_400.0
    """Seconds for which metrics are kept."""
    max_bytes: Bytes = 64 << 30
    """Maximum size of the history; the oldest files are deleted first."""
    records_bytes: Bytes = 8 << 30
    """Maximum size of the records around incidents (`records/`, for `eagle-eye replay`); the oldest files are deleted first."""


class AccessConfig(Section, frozen=True, kw_only=True):
    """Authentication: certificates, tokens and roles."""

    ca_file: str = ""
    """PEM of the control channel's certificate authority (`eagle-eye certs` creates one); with it, TLS is mutual."""
    certificate_file: str = ""
    """PEM of this process's certificate. `{node}` in a path is replaced by the node's name, so that nodes can share one file."""
    key_file: str = ""
    """PEM of its key."""
    stream_key_file: str = ""
    """NAME.stream of `eagle-eye certs issue`: this process signs its records of the stream, and servers refuse those of anybody else. `{node}` as above. Empty: records are not signed."""
    stream_late_s: Seconds = 600.0
    """A signed record that reaches the stream later is refused as one that was recorded and is written again. What waits in a spool is signed when it is sent."""
    stream_unsigned: bool = False
    """Servers take records without a signature, too: until all nodes have their keys."""
    tokens_file: str = ""
    """TOML with hashed tokens and roles of the operators (`eagle-eye token`). Default: tokens/tokens.toml in the state directory, if it exists."""
    token_file: str = ""
    """File with the token that commands send; else the variable EAGLE_EYE_TOKEN."""


class HooksConfig(Section, frozen=True, kw_only=True):
    """Webhooks of the HTTP port: /hooks/alertmanager."""

    token_file: str = ""
    """File with a token for webhooks only; else the variable EAGLE_EYE_HOOKS_TOKEN. Operators' tokens are accepted, too."""
    job_labels: tuple[str, ...] = ("eagle_eye_job",)
    """Alert labels that may hold a job (tenant/name/run); the first one present counts. (Not Prometheus' own label `job`.)"""
    node_labels: tuple[str, ...] = ("node", "Hostname", "hostname", "host", "instance")
    """Alert labels that may hold a node; a port after the name is ignored."""
    gpu_labels: tuple[str, ...] = ("UUID", "gpu_uuid")
    """Alert labels that may hold the UUID of a GPU."""
    max_bytes: Bytes = 4 << 20
    """Maximum size of a request body."""


class AgentConfig(Section, frozen=True, kw_only=True):
    """The agent of a node."""

    batch_s: Seconds = 1.0
    """Seconds between two batches."""
    stall_poll_s: Seconds = 0.2
    """Seconds between two checks of the workers' progress."""
    idle: bool = False
    """True: write batches also while the node has no job, so that an idle node is watched."""
    cpu_percent: Percent = 10.0
    """CPU that the agent may use, with programs that it starts, in percent of one core over ten seconds; beyond it the costliest collectors run less often, and an event reports it. What finds hangs and deaths is never slowed."""
    memory_mb: Megabytes = 500.0
    """Memory in MB that the agent may use; an event reports it when it uses more."""


class StallConfig(Section, frozen=True, kw_only=True):
    """When a worker that makes no progress is suspected, and how long it is waited for: agents, detectors and launchers use the same."""

    suspect_s: Seconds = 1.0
    """A worker that has set no mark for so many seconds is suspected: it is looked into and shown; nothing is done to it for that."""
    suspect_iterations: Ratio = 3.0
    """Or for so many of its mean iteration times, if that is more."""
    suspect_pause_s: Seconds = 10.0
    """Seconds before a worker is suspected that waits for data, evaluates, saves a checkpoint or has not completed its first step."""
    stopped_s: Seconds = 0.5
    """A process that a signal has stopped (state T) is a proof after so many seconds."""
    standing_s: Seconds = 30.0
    """How long a worker is waited for that stands without a proof: no processor time, no files, no memory, the same stack each time."""
    patience_s: Seconds = 600.0
    """How long a worker is waited for that works: it computes, reads, writes, compiles, evaluates."""
    regroup_s: Seconds = 5.0
    """Workers of an elastic job that all wait for one another meet again under a new epoch after so many seconds ..."""
    regroup_iterations: Ratio = 10.0
    """... and this many iterations; before any was measured after suspect_pause_s at the earliest. It costs them the step at most."""
    answer_s: Seconds = 1.0
    """How long an elastic worker may take to answer a fence before the others go on without waiting for it ..."""
    answer_longest_s: Seconds = 10.0
    """... and so long while one of its threads runs, or waits for a disk: its machine is busy, or it computes in one long call."""
    return_s: Seconds = 5.0
    """How long an elastic worker that was left out may take to enter again before it is ended and replaced. One that only did not answer a
    fence is ended when it is proved to hang, too, or when the patience for what it does is over."""
    leave_s: Seconds = 30.0
    """How long an elastic worker that is not needed any more may take to end."""
    boundary_s: Seconds = 3.0
    """How long elastic workers that are to leave may take to the end of their step before the others go on without them."""
    silent_s: Seconds = 5.0
    """How long a launcher that has fallen silent is waited for when a worker of a job that is not elastic has died: its process may only be held up,
    and to go on without it and take it back costs a second restart. One whose connection was closed has ended, and is not waited for."""
    end_s: Seconds = 5.0
    """How long processes that were killed may take to end, and a launcher to agree to a new epoch, before the job goes on without their node; the
    kernel takes longer to free hundreds of GB of pinned memory."""
    reconnect_s: Seconds = 1.0
    """How long elastic workers whose connections broke wait for somebody to be found dead before they are connected anew."""


class CheckpointsConfig(Section, frozen=True, kw_only=True):
    """Checkpoints in memory: what a launcher keeps of those of the node before its own, and how often they go to storage."""

    backup_share: Share = 0.25
    """Of a node's memory: so much, at the most, holds checkpoints of another node's workers, twice their state; 0: nothing is copied to other nodes."""
    backup_every: Count = 1
    """Copied is the first checkpoint at or behind each multiple of so many steps, or of twice, four times, ... as many: where a copy takes more than half of
    the time between two, and where copying takes more than ..."""
    backup_cpu_share: Share = 0.01
    """... this share of a node's processors; 0: no limit."""
    backup_steps: StepsKept = 2
    """Steps of each worker of another node that are kept for it, the newest ones: 2 to 8. Fewer, and never below 2, where backup_share or the node has no room for so many.
    What of an older step nobody needs any more goes once storage has a step at least as new."""
    memory_steps: Annotated[int, msgspec.Meta(ge=0, le=8)] = 0
    """States of its own that each worker's memory has room for: 2 to 8, one of which is written while the others stay. 0: 3 where copies go to other nodes or to storage, else 2."""
    storage_interval_s: Delay = 600.0
    """At the most so many seconds are between two checkpoints in memory that the launchers bring to the job's directory (--checkpoint-dir; without that
    option none is stored); 0: none is stored. In steps it is the next lower power of two, so that all nodes store the same ones."""
    tune_interval: bool = False
    """True: the interval is the best one for what storing was measured to cost and how often the job fails (Young, Daly), longer or shorter than storage_interval_s,
    once one was stored. It is told with each that is stored, in any case."""
    storage_keep: Count = 2
    """Of the checkpoints that the launchers have stored so many of the newest stay, and the newest finite one; older ones are deleted, but for ..."""
    storage_keep_steps: Steps = 0
    """... the first one of each span of so many steps (1000: the first at or behind step 0, 1000, 2000, ...); 0: none ..."""
    storage_keep_hours: Hours = 0.0
    """... and the first one of each span of so many hours, 0.001 or more; 0: none."""

    def __post_init__(self) -> None:
        if self.memory_steps == 1:
            raise ValueError("checkpoints.memory_steps is 1; give 2 to 8, since one state is written while another one stays whole, or 0: as many as are needed")
        if self.storage_keep_hours and not self.storage_keep_hours >= 0.001:
            raise ValueError(f"checkpoints.storage_keep_hours is {self.storage_keep_hours:g}; give 0.001 or more hours, or 0: no such span")


class CostConfig(Section, frozen=True, kw_only=True):
    """What an incident costs."""

    gpu_hour: Price = 0.0
    """Price of an hour of one GPU; incidents then show what they cost. 0: they show GPU-hours alone."""
    currency: Annotated[str, msgspec.Meta(min_length=1, max_length=10)] = "USD"
    """What stands behind an amount."""

    def text(self, gpu_hours: float) -> str:
        """
        >>> CostConfig(gpu_hour=2.5).text(1_000.0), CostConfig().text(1_000.0)
        ('2,500.00 USD', '')
        """
        return f"{gpu_hours * self.gpu_hour:,.2f} {self.currency}" if self.gpu_hour > 0.0 else ""


class NodesConfig(Section, frozen=True, kw_only=True):
    """Where some nodes are. Of several tables that name a node the first that has a value counts, for each value of its own."""

    hosts: str
    """Their names as a hostlist, such as "node[001-128,130]"; * and ? stand for anything, as in "rack-1-*"."""
    switch: Name = ""
    """The switch that they are connected to; a guard counts the nodes that are evicted at one switch."""
    rack: Name = ""
    """The rack that they stand in."""
    zone: Name = ""
    """The power zone, hall or availability zone."""
    rails: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)] = ()
    """Ports (mlx5_0:1, eth0) in the order of their rails. Default: those that run at the highest rate, by PCI address."""

    def __post_init__(self) -> None:
        try:
            found = hosts_of(self.hosts)
        except ValueError as error:
            raise ValueError(f"topology.nodes.hosts: {error}") from error
        if not found:
            raise ValueError('topology.nodes.hosts is empty; name the nodes of this table, such as "node[01-16]"')
        if not (self.switch or self.rack or self.zone or self.rails):
            raise ValueError(f"topology.nodes with hosts = {self.hosts[:60]!r} says nothing of them: add switch, rack, zone or rails")


class TopologyConfig(Section, frozen=True, kw_only=True):
    """Where the nodes are, as far as it is not to be found by the agents (Slurm, labels of Kubernetes, LLDP). The same on all machines."""

    nodes: tuple[NodesConfig, ...] = ()
    """One table [[topology.nodes]] for each group of nodes. What stands here counts before anything that is found."""


class Config(Section, frozen=True, kw_only=True):
    """A deployment."""

    state_dir: str = ""
    """Directory for everything that must survive a restart. Default: $XDG_STATE_HOME/eagle-eye, else ~/.local/state/eagle-eye."""
    run_dir: str = ""
    """Directory for sockets and job files, one per node. Default: /run/eagle-eye, else $XDG_RUNTIME_DIR/eagle-eye, else state_dir/run."""
    server: ServerConfig = ServerConfig()
    stream: StreamConfig = StreamConfig()
    agent: AgentConfig = AgentConfig()
    ledger: LedgerConfig = LedgerConfig()
    history: HistoryConfig = HistoryConfig()
    access: AccessConfig = AccessConfig()
    hooks: HooksConfig = HooksConfig()
    stall: StallConfig = StallConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    topology: TopologyConfig = TopologyConfig()
    cost: CostConfig = CostConfig()
    engine: Options = {}
    """Settings of the engine: remediation/policy/engine_settings.py."""
    collectors: dict[str, Options] = {}
    """One table per collector, [collectors.NAME]; `enabled = false` disables it."""
    detectors: dict[str, Options] = {}
    """One table per detector, [detectors.NAME]; `enabled = false` disables it, `use = "pkg.mod:Name"` adds your own."""
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
            return _directory("state_dir", self.state_dir)
        home = os.environ.get("XDG_STATE_HOME", "~/.local/state")
        return _directory("state_dir", f"{home}/eagle-eye")

    @property
    def run(self) -> Path:
        """The runtime directory, resolved: the first candidate that this user may write to."""
        if self.run_dir:
            return _directory("run_dir", self.run_dir)
        if os.access("/run", os.W_OK):
            return Path("/run/eagle-eye")
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        return Path(runtime) / "eagle-eye" if runtime else self.state / "run"


def _directory(key: str, path: str) -> Path:
    """Raises ConfigError for a home directory that cannot be found."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"{key} is {path!r}: there is no such user, or no home directory; write the whole path") from error


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
        tables = msgspec.toml.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:  # ValueError: a number of more digits than Python converts
        raise ConfigError(f"{name}: not valid TOML: {error}. Fix the line, or start from `eagle-eye config init`.") from error
    return _converted(tables, name)


def check(config: Config, name: str) -> None:
    """Raise ConfigError for a value that cannot be used; `name` says where it comes from."""
    _converted(msgspec.to_builtins(config), name)


def _converted(tables: dict[str, Any], name: str) -> Config:
    try:
        return msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {_named(error, tables)}. `eagle-eye config init` prints every key with its type and default.") from error


def _named(error: msgspec.ValidationError, tables: dict[str, Any]) -> str:
    """What is wrong with which key, and what stands there."""
    if isinstance(error.__cause__, ValueError):
        return str(error.__cause__)  # a check of ours, which names the key
    if unknown := UNKNOWN_KEY.match(str(error)):
        return _unknown(*unknown.groups(default=""))
    if (group := NO_TABLE.match(str(error))) and (found := _no_table(tables, group[1])):
        return found
    expected, _, path = str(error).partition(" - at `$.")
    value: Any = tables
    try:
        for part in path.rstrip("`").split("."):
            value = value[part]
    except (KeyError, TypeError):
        return str(error)  # of no single key, or inside a list
    if isinstance(value, dict):
        return str(error)
    return f"{path.rstrip('`')} is {value!r}: {expected}"


def _unknown(key: str, path: str) -> str:
    """That there is no such key in the table at `path`; which key of it is like that, or which table has the key."""
    known = _fields(Config)
    for part in path.split(".") if path else ():
        known = _fields(known.get(part))
    missing = f"there is no key {key!r}" + (f" in [{path}]" if path else " outside the tables")
    if near := difflib.get_close_matches(key, known, n=1):
        return f"{missing} (did you mean {near[0]!r}?)"
    owners = [f"[{name}]" for name, table in _fields(Config).items() if key in _fields(table)]
    return f"{missing} (it belongs into {' or '.join(owners)})" if owners else missing


def _fields(table: Any) -> dict[str, Any]:
    """Key → type of a table; none for what is no table of this file."""
    section = isinstance(table, type) and issubclass(table, Section)
    return {field.encode_name: field.type for field in msgspec.structs.fields(table)} if section else {}


def _no_table(tables: dict[str, Any], group: str) -> str:
    """The first value of a group of tables that is no table; '' if it is deeper."""
    options = tables.get(group)
    wrong = [(key, value) for key, value in options.items() if not isinstance(value, dict)] if isinstance(options, dict) else []
    return f"{group}.{wrong[0][0]} is {wrong[0][1]!r}: [{group}] holds one table for each plugin, such as [{group}.NAME]" if wrong else ""


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: {error.strerror}. Make it with `eagle-eye config init > {path}`.") from error
    except OSError as error:
        remedy = "Start from `eagle-eye config init`" if error.errno == errno.EILSEQ else "Name a file that this user can read with --config"
        raise ConfigError(f"{path}: {error.strerror}. {remedy}.") from error
