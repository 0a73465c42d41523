"""A cluster and its jobs as a TOML file: what `eagle-eye plan` reads. Every error names the file, the line and the field.

examples/cluster.toml shows each key.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import UNREADABLE, ConfigError
from eagle_eye.ledger import Throughput
from eagle_eye.text_file import read_text
from remediation.planner.allocation.tasks import Task, TaskCluster
from remediation.planner.performance import hardware as gpus
from remediation.planner.performance.calibration import calibrate
from remediation.planner.performance.hardware import Hardware
from remediation.planner.performance.measured_throughput import (
    MeasuredThroughput,
    from_ledger,
    measured_iterations,
    read_csv,
)
from remediation.planner.performance.model_shape import ModelShape
from remediation.planner.performance.parallel_layout import ParallelLayout, Recompute
from remediation.planner.performance.profiled_throughput import read_profile, throughput
from remediation.planner.performance.throughput_model import ThroughputModel
from remediation.planner.performance.training_run import TrainingRun

from .toml_lines import TomlLines, TomlPath, parsed_path

LARGEST_COUNT = 1_000_000
"""Nodes, GPUs of a node, layers, samples: more is a typing error."""
CountFromZero = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
NonNegativeNumber = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PositiveNumber = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
LLAMA_MTBF_HOURS = 50_700.0
"""GPU-hours between two unexpected interruptions: Llama 3 (2024), 419 in 54 days on 16,384 H100."""
_WHERE = re.compile(r"^(.*?)(?: - at `(?:key in )?(\$[^`]*)`)?$", re.DOTALL)


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[cluster]"""

    nodes: PositiveCount
    gpu: str = "A100-80GB"
    gpus_per_node: PositiveCount = 8
    network_gb_s: PositiveNumber | None = None
    """A GPU's share of its node's network, in place of what is usual for the GPU."""
    spare_nodes: CountFromZero = 0
    """Of the nodes, held back."""
    gpu_mtbf_hours: PositiveNumber = LLAMA_MTBF_HOURS
    repair_hours: PositiveNumber = 24.0
    """Until a broken node is back."""
    measured: str = ""
    """A CSV of measured throughputs, beside this file: task, gpus, flops or samples_s, and the layout where it is known (measured_throughput.py)."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[job.model]"""

    layers: PositiveCount
    hidden: PositiveCount
    heads: PositiveCount
    sequence: PositiveCount
    vocabulary: PositiveCount = 51200
    feed_forward: CountFromZero = 0
    fused_attention: bool = True


class RunningLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[job.layout]: how the job runs now."""

    tensor: PositiveCount = 1
    pipeline: PositiveCount = 1
    data: PositiveCount
    micro_batch: PositiveCount
    recompute: Literal["none", "selective", "full"] = "none"
    interleave: PositiveCount = 1

    @property
    def layout(self) -> ParallelLayout:
        """As the throughput model takes it."""
        return ParallelLayout(self.tensor, self.pipeline, self.data, self.micro_batch, Recompute[self.recompute.upper()], self.interleave)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[job]]"""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    nodes: CountFromZero = 0
    """That it has now; 0: it waits."""
    queued: bool = False
    """It gets no nodes before it is launched."""
    weight: NonNegativeNumber = 1.0
    minimum_nodes: CountFromZero = 1
    maximum_nodes: PositiveCount | None = None
    global_batch: PositiveCount = 512
    model: ModelSpec | None = None
    """None: only what was measured or profiled is known."""
    profile: str = ""
    """In place of `model`: what `eagle-eye profile` wrote, beside this file."""
    sharded_optimizer: bool = True
    sequence_parallel: bool = True
    even: bool = False
    """The framework splits layers and batch without remainder only."""
    replicas: PositiveCount | None = None
    """Data-parallel copies it runs with; None: as in its layout, or in the best one."""
    layout: RunningLayout | None = None
    """That it runs now; None: the best one."""
    checkpoint_age_minutes: NonNegativeNumber = 15.0
    checkpoint_save_s: PositiveNumber | None = None
    """How long a save pauses training; for advice on the interval."""
    transition_s: NonNegativeNumber | None = None
    """Downtime when its nodes change; None: from TransitionCosts."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cluster: ClusterSpec
    job: list[JobSpec] = []


class ClusterFile:
    """A checked file."""

    def __init__(self, path: Path, reached: Sequence[Throughput] = ()) -> None:
        """reached: throughputs of these jobs in the ledger. Raises ConfigError: `FILE, line N: field: what is wrong`."""
        self.path = path
        try:
            text = read_text(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); `eagle-eye plan` needs a TOML file such as examples/cluster.toml") from error
        self._lines = TomlLines(text)
        parsed = self._parsed(text)
        self.machines, self.jobs = parsed.cluster, tuple(parsed.job)
        self._check()
        hardware = self._hardware()
        runs = self._runs()
        measured = [*self._measured(), *from_ledger(reached, runs)]
        self.calibration = calibrate(hardware, measured_iterations(measured, runs))
        self.throughput_model = ThroughputModel(hardware, runs, measured, self.calibration.coefficients, self._profiled(hardware))

    @property
    def workers(self) -> int:
        """GPUs of the cluster."""
        return self.machines.nodes * self.machines.gpus_per_node

    def task_cluster(self, transitions: dict[str, float]) -> TaskCluster:
        """The allocation's input, allocated by whole nodes. transitions: seconds of each job's D_transition.

        Raises ConfigError for a job that cannot run on any number of nodes, or not on those it has.
        """
        tasks = {job.name: self._task(index, job, transitions[job.name]) for index, job in enumerate(self.jobs)}
        node = self.machines.gpus_per_node
        return TaskCluster(
            tasks=tuple(tasks[job.name] for job in self.jobs if not job.queued),
            queue=tuple(tasks[job.name] for job in self.jobs if job.queued),
            workers=self.workers,
            gpu_mtbf_s=self.machines.gpu_mtbf_hours * 3600,
            granularity=node,
            spares=self.machines.spare_nodes * node,
            spare_pool=self.machines.spare_nodes * node,
        )

    def error(self, path: TomlPath, message: str) -> ConfigError:
        """With line and field."""
        field = ".".join(f"[{key}]" if isinstance(key, int) else key for key in path).replace(".[", "[") or "the file"
        return ConfigError(f"{self.path}, line {self._lines.line(path)}: {field}: {message}")

    def _parsed(self, text: str) -> _File:
        try:
            return msgspec.toml.decode(text, type=_File)
        except msgspec.ValidationError as error:
            found = _WHERE.match(str(error))
            what, where = (found[1], found[2] or "$") if found else (str(error), "$")
            unknown = re.search(r"unknown field `([^`]+)`", what)
            path = (*parsed_path(where), *([unknown[1]] if unknown else []))
            raise self.error(path, "no such key" if unknown else what) from error
        except UNREADABLE as error:
            raise ConfigError(f"{self.path}: not valid TOML: {error}; compare it with examples/cluster.toml") from error

    def _check(self) -> None:
        names: set[str] = set()
        for index, job in enumerate(self.jobs):
            if job.name in names:
                raise self.error(("job", index, "name"), f"two jobs are called {job.name!r}")
            names.add(job.name)
            if job.maximum_nodes is not None and job.maximum_nodes < job.minimum_nodes:
                raise self.error(("job", index, "maximum_nodes"), f"is {job.maximum_nodes}, below minimum_nodes, {job.minimum_nodes}")
            if job.layout is not None:
                self._check_layout(index, job, job.layout.layout)
            if job.queued and job.nodes:
                raise self.error(("job", index, "nodes"), f"is {job.nodes}, but a queued job has none yet")
        if self.machines.spare_nodes > self.machines.nodes:
            raise self.error(("cluster", "spare_nodes"), f"is {self.machines.spare_nodes}, more than the {self.machines.nodes} nodes there are")
        used, free = sum(job.nodes for job in self.jobs), self.machines.nodes - self.machines.spare_nodes
        if used > free:
            raise self.error(("cluster", "nodes"), f"the jobs have {used} nodes, but without spares there are {free}")

    def _check_layout(self, index: int, job: JobSpec, layout: ParallelLayout) -> None:
        gpus = job.nodes * self.machines.gpus_per_node
        if job.model is None or job.replicas is not None:
            raise self.error(("job", index, "layout"), "there is " + ("no model to estimate it with" if job.model is None else "`replicas` too; give one of them"))
        if layout.gpus != gpus:
            raise self.error(("job", index, "layout"), f"{layout} has {layout.gpus} GPUs, the job's {job.nodes} nodes have {gpus}")
        if layout.pipeline * layout.interleave > job.model.layers or layout.data > job.global_batch:
            raise self.error(("job", index, "layout"), f"{layout} does not divide {job.model.layers} layers and {job.global_batch} samples: some GPUs would have none")

    def _hardware(self) -> Hardware:
        try:
            kind = gpus.hardware_of(self.machines.gpu)
        except ConfigError as error:
            raise self.error(("cluster", "gpu"), str(error)) from error
        network = kind.network_bytes_s if self.machines.network_gb_s is None else self.machines.network_gb_s * 1e9
        return replace(kind, gpus_per_node=self.machines.gpus_per_node, network_bytes_s=network)

    def _runs(self) -> dict[str, TrainingRun]:
        runs = {}
        for index, job in enumerate(self.jobs):
            if job.model is None:
                continue
            try:
                shape = ModelShape(**msgspec.structs.asdict(job.model))
            except ConfigError as error:
                raise self.error(("job", index, "model"), str(error)) from error
            runs[job.name] = TrainingRun(
                shape=shape, global_batch=job.global_batch, sharded_optimizer=job.sharded_optimizer, sequence_parallel=job.sequence_parallel, even=job.even
            )
        return runs

    def _profiled(self, hardware: Hardware) -> dict[str, NDArray[np.float64]]:
        rows = {}
        for index, job in enumerate(self.jobs):
            if not job.profile:
                continue
            if job.model is not None:
                raise self.error(("job", index, "profile"), "there is a model too; give one of them")
            try:
                rows[job.name] = throughput(read_profile(self.path.parent / job.profile), hardware, self.machines.nodes, job.global_batch)
            except ConfigError as error:
                raise self.error(("job", index, "profile"), str(error)) from error
        return rows

    def _measured(self) -> list[MeasuredThroughput]:
        if not self.machines.measured:
            return []
        try:
            return read_csv(self.path.parent / self.machines.measured, self._runs())
        except ConfigError as error:
            raise self.error(("cluster", "measured"), str(error)) from error

    def _task(self, index: int, job: JobSpec, transition_s: float) -> Task:
        node = self.machines.gpus_per_node
        try:
            row = self.throughput_model.row(job.name, self.workers, node)
        except ConfigError as error:
            raise self.error(("job", index, "model"), str(error)) from error
        highest = self.workers if job.maximum_nodes is None else min(self.workers, job.maximum_nodes * node)
        if not row[job.minimum_nodes * node : highest + 1].any():
            most = f"{job.minimum_nodes} to {highest // node} nodes"
            raise self.error(("job", index, "name"), f"{job.name!r} cannot fit: no layout on {most} of {node} {self.machines.gpu} has room for it")
        if job.nodes and not row[job.nodes * node] and job.layout is None:
            raise self.error(("job", index, "nodes"), f"{job.name!r} has {job.nodes} nodes, but no layout on exactly {job.nodes * node} GPUs fits")
        return Task(
            name=job.name,
            throughput=row,
            weight=job.weight,
            minimum=job.minimum_nodes * node,
            maximum=highest,
            current=job.nodes * node,
            transition_s=transition_s,
        )
