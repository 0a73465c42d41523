"""Everything that one launcher needs to know, handed in at its start."""

import math
import os
import re
from pathlib import Path

import msgspec

from eagle_eye.config import AccessConfig, CheckpointsConfig, StallConfig, StreamConfig, TopologyConfig
from eagle_eye.errors import ConfigError
from eagle_eye.training.checkpoint.checkpoint_directory import FROM_MEMORY
from eagle_eye.training.checkpoint.checkpoint_retention import CheckpointRetention
from eagle_eye.training.checkpoint.memory_segment import SLOTS, SLOTS_WITH_BACKUP
from eagle_eye.training.object_path import StoragePath

from .parallel_sizes import ParallelSizes, parse_parallel, sizes_in_command

NAME = re.compile(r"\w[\w.-]*")
"""Of tenants, jobs, runs and nodes: they become names of files."""
LONGEST_NAME = 64
"""Bytes of one of them, as of a host (HOST_NAME_MAX): three and what is put around them are the name of one file, of 255 at most."""
LONGEST_SOCKET = 107
"""Bytes of a unix socket's path (unix(7))."""


class LauncherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One launcher of one job on one node. Times in seconds."""

    job: str
    """tenant/name/run; the run must be unique per start."""
    node: str
    command: tuple[str, ...]
    """The training command: `python train.py ...`, `train.py ...`, or any program."""
    state_dir: Path
    run_dir: Path
    """Of this node alone: two nodes on one machine have two."""
    nproc: int = 1
    """Workers on this node."""
    gpus: tuple[str, ...] = ()
    """UUID of each worker's GPU, by local rank; empty: the driver is asked at the start."""
    parallel: str = ""
    """How the model is split over the ranks, such as tp=4,pp=2; empty: as the training command says, if it does."""
    nnodes: tuple[int, int] = (1, 1)
    """Fewest and most nodes that the job may run on."""
    address: str = "127.0.0.1:0"
    """host:port on which this launcher serves its control channel; port 0 takes a free one."""
    or_any_port: bool = False
    """True: where the address is taken, any other port of its host will do."""
    rendezvous: str = ""
    """host:port of the launcher that coordinates the job from its start; empty: this one."""
    leader: str = ""
    """host:port of the server; empty: the job lives without one."""
    heal: str = ""
    """What the job may do to itself: none, restart:N[/WINDOW] or in-place[:N[/WINDOW]]; empty: restart:3, and in-place where the
    script calls eagle_eye.elastic."""
    min_workers: int = 1
    """An elastic job with fewer saves a checkpoint and stops."""
    weight: float = 1.0
    """What an elastic job's progress is worth against that of others, when the server shares workers out."""
    respawns: int = -1
    """How many of its workers that die are replaced on the spot; -1: all, as long as it may heal itself."""
    max_skipped_steps: int = 0
    """Steps that the job may skip, in its whole life, because the same failure came again in them; 0: it ends with it."""
    checkpoint_dir: StoragePath | None = None
    """Shared by all nodes; a directory, or a URL. Default: state_dir/checkpoints/<job>."""
    working_dir: Path | None = None
    """Of the workers. Default: the launcher's own."""
    environment: dict[str, str] | None = None
    """Of the workers, before ours is added. Default: the launcher's own."""
    preload: tuple[str, ...] = ("torch", "torch.distributed", "torch._dynamo", "eagle_eye.training.checkpoint")
    """Modules that are imported once, before the workers are forked. The default holds what
    every optimizer of torch imports at its first use (a second of work). Without torch nobody serves the ranks' store."""
    console: bool = True
    """Print the log of rank 0, each line with its worker's name in front."""
    steps_from: str = "marks"
    """What tells the steps: `marks` of the script, or each step of its `optimizer`, for one that makes no marks."""
    stall: StallConfig = StallConfig()
    """When a worker that makes no progress is suspected, and how long it is waited for: the deployment's."""
    backup: CheckpointsConfig = CheckpointsConfig()
    """Of its checkpoints in memory, on other nodes and in storage: the deployment's."""
    topology: TopologyConfig = TopologyConfig()
    """Where nodes are, as far as their agents do not say: the deployment's."""
    stream: StreamConfig = StreamConfig()
    """Where its events go: the deployment's."""
    access: AccessConfig = AccessConfig()
    """Its certificate on the control channel, and whom it trusts there."""
    insecure: bool = False
    """Listen beyond loopback without certificates."""
    lease_s: float = 2.0
    """Silence after which a session counts as lost."""
    join_timeout_s: float = 10.0
    """At the start: how long more nodes than the fewest are waited for."""
    start_s: float = 5.0
    """A worker that marks no steps and ends by its own doing within this time counts as one that never began."""
    stop_grace_s: float = 10.0
    """Between SIGTERM and SIGKILL when the user stops the job."""
    patience_s: float = 10.0
    """How long a job whose own budget is spent waits for a command of the server, while that is connected."""
    server_s: float = 60.0
    """How long it waits for a server that is not connected, as it may be started again."""
    cordon_answer_s: float = 5.0
    """How long the server is given at the start to say whether this node is cordoned, while the zygote gets ready."""
    new_server: bool = False
    """True: the server starts together with this job and knows nothing of it yet, so it is asked neither for a cordon nor for a coordinator."""
    ignore_cordon: bool = False
    """True: start workers on a node that is cordoned."""
    wait_nodes_s: float = 600.0
    """How long a job with too few nodes waits for more."""

    def __post_init__(self) -> None:
        _ = self.parallel_sizes  # raises where it is not understood
        if self.job.count("/") != 2 or not all(self.job.split("/")):
            raise ConfigError(f"job {self.job!r} is not understood: use tenant/name/run")
        for name in (*self.job.split("/"), self.node):
            if not NAME.fullmatch(name):
                raise ConfigError(f"{name!r} is not usable as a name: letters, digits, '_', '-' and '.', the first no '-' or '.'")
            if len(name.encode()) > LONGEST_NAME:
                raise ConfigError(f"{name[:LONGEST_NAME]}… is too long as a name: {len(name.encode())} bytes, {LONGEST_NAME} are possible")
        if (length := len(os.fsencode(self.inbox))) > LONGEST_SOCKET:
            raise ConfigError(
                f"{self.inbox} is too long as the path of a socket: {length} bytes, {LONGEST_SOCKET} are possible; "
                "choose a shorter run directory (run_dir in the configuration) or a shorter run"
            )
        self._check_numbers()
        if self.nnodes[1] == 1 and self.min_workers > self.nproc:
            raise ConfigError(
                f"--min-workers {self.min_workers} is more than the job can have: one node (--nnodes 1) with {self.nproc} (--nproc-per-node); "
                "lower it, or raise one of the others"
            )
        if not 1 <= self.nnodes[0] <= self.nnodes[1]:
            raise ConfigError(f"--nnodes {self.nnodes[0]}:{self.nnodes[1]} is not usable: use N or MIN:MAX, MIN ≥ 1")

    def _check_numbers(self) -> None:
        for option, value, usable, remedy in (
            ("--nproc-per-node", self.nproc, self.nproc >= 1, "start at least one worker"),
            ("--min-workers", self.min_workers, self.min_workers >= 1, "a job needs at least one worker"),
            ("--weight", self.weight, self.weight > 0 and math.isfinite(self.weight), "a number above zero, 1 being usual"),
            ("--respawns", self.respawns, self.respawns >= -1, "a count, or -1 for all"),
            ("--max-skipped-steps", self.max_skipped_steps, self.max_skipped_steps >= 0, "a count, 0 for none"),
        ):
            if not usable:
                raise ConfigError(f"{option} {value} is not usable: {remedy}")

    @property
    def has_backup(self) -> bool:
        """Its checkpoints in memory go to another node, too."""
        return self.nnodes[1] > 1 and self.backup.backup_share > 0

    @property
    def copies_in_memory(self) -> int:
        """Of each worker's state: the neighbour, or storage, takes one while the newest stays and the next is written."""
        return self.backup.memory_steps or (SLOTS_WITH_BACKUP if self.has_backup or self.stored_copies else SLOTS)

    @property
    def parallel_sizes(self) -> ParallelSizes:
        """As declared, or as the training command says."""
        return parse_parallel(self.parallel) if self.parallel else sizes_in_command(self.command)

    @property
    def run(self) -> str:
        return self.job.rsplit("/", 1)[-1]

    @property
    def checkpoints(self) -> StoragePath:
        """Where the job's checkpoints lie."""
        return self.checkpoint_dir or self.state_dir / "checkpoints" / self.job

    @property
    def checkpoint_directories(self) -> tuple[StoragePath, StoragePath]:
        """Of those that the script saves itself, and of those that are stored from memory."""
        return self.checkpoints, self.checkpoints / FROM_MEMORY

    @property
    def stored_copies(self) -> StoragePath | None:
        """Where its checkpoints in memory are stored; None: nowhere, for nobody has named a directory, or wants them stored."""
        return self.checkpoint_directories[1] if self.checkpoint_dir is not None and self.backup.storage_interval_s else None

    @property
    def stored_retention(self) -> CheckpointRetention:
        """Which of those stay."""
        return CheckpointRetention(newest=self.backup.storage_keep, each_steps=self.backup.storage_keep_steps, each_hours=self.backup.storage_keep_hours)

    @property
    def logs(self) -> Path:
        """Where the logs of this node's workers lie."""
        return self.state_dir / "logs" / self.run / self.node

    @property
    def last_start(self) -> Path:
        """What the newest run of the job that this node coordinated was started with."""
        return self.state_dir / "starts" / f"{self.job.rpartition('/')[0]}.json"

    @property
    def inbox(self) -> Path:
        """The unix socket to which the workers talk."""
        return self.run_dir / f"{self.run}-launcher.sock"

    @property
    def elastic_socket(self) -> Path:
        """The unix socket to which elastic workers hold a session."""
        return self.run_dir / f"{self.run}-elastic.sock"
