"""Job mixes: the tasks that share the simulated cluster, from a TOML file.

    name = "two jobs"
    [[task]]
    name = "chat"            # each name once
    model = "7b"             # of models.toml, or of a [model.NAME] in this file
    weight = 2.0             # default 1
    minimum_nodes = 2        # default: one replica
    maximum_nodes = 8        # default: all
    replica_nodes = 1        # nodes that hold the model once (n0)
    iteration_s = 20.0
    [model.mine]
    points = [[8, 150.0], [64, 140.0]]     # GPUs, TFLOP/s of each
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import UNREADABLE, ConfigError
from eagle_eye.text_file import read_text
from remediation.planner.pipelines.layer_profile import LayerChain, ProfiledLayer
from remediation.planner.pipelines.node_stages import one_stage_per_node
from remediation.planner.pipelines.pipeline_template import four_per_stage

T = TypeVar("T")
FOLDER = Path(__file__).with_name("job_mixes")
BEYOND = 0.98
"""Beyond the last measured count, what each doubling of GPUs leaves of a GPU's throughput (assumed)."""


class ModelThroughput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured throughput of a model."""

    points: tuple[tuple[int, float], ...]
    """(GPUs, TFLOP/s of each GPU), rising in GPUs."""
    source: str = ""
    layers: int = 96
    beyond: float = BEYOND


class JobMixRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task in the file."""

    name: str
    model: str
    weight: float = 1.0
    minimum_nodes: int = 0
    maximum_nodes: int = 0
    replica_nodes: int = 1
    iteration_s: float = 20.0


class ModelThroughputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """models.toml."""

    model: dict[str, ModelThroughput]


class JobMixFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of tasks."""

    name: str
    task: tuple[JobMixRow, ...]
    about: str = ""
    model: dict[str, ModelThroughput] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMixEntry:
    """A task of the simulation. Its throughput is without any policy's own efficiency."""

    name: str
    weight: float
    minimum: int
    """Nodes below which it does not run."""
    maximum: int
    replica: int
    """Nodes that hold the model once."""
    iteration_s: float
    rates: NDArray[np.float64]
    """FLOP/s at index 0, 1, 2, ... nodes when whole replicas alone work; what is left over idles."""
    template_rates: NDArray[np.float64]
    """FLOP/s when pipelines of unequal size use every node."""


def mix_names() -> list[str]:
    """The mixes of the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "models")


def read_job_mix(source: str | Path, nodes: int, gpus_per_node: int, models: Mapping[str, ModelThroughput] | None = None) -> list[JobMixEntry]:
    """The tasks of a file, or of a mix of the package by its name; `models` replace those of models.toml.

    Raises ConfigError with the file and the field.
    """
    path = FOLDER / f"{source}.toml" if str(source) in mix_names() else Path(source)
    file = _decoded(path, JobMixFile)
    known = {**_decoded(FOLDER / "models.toml", ModelThroughputs).model, **file.model, **(models or {})}
    if not file.task:
        raise ConfigError(f"{path}: there is no [[task]]")
    if len({each.name for each in file.task}) < len(file.task):
        raise ConfigError(f"{path}: two tasks have the same name; give each a name of its own")
    return [_job(path, entry, known, nodes, gpus_per_node) for entry in file.task]


def _decoded(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.toml.decode(read_text(path), type=kind)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a TOML file, or one of {', '.join(mix_names())}") from error
    except UNREADABLE as error:
        raise ConfigError(f"{path}: {error}; compare it with those of {FOLDER}") from error


def _job(path: Path, entry: JobMixRow, models: Mapping[str, ModelThroughput], nodes: int, gpus_per_node: int) -> JobMixEntry:
    place = f"{path}: task {entry.name!r}"
    if entry.model not in models:
        raise ConfigError(f"{place}: model is {entry.model!r}; there are {', '.join(models)}, or add a [model.{entry.model}]")
    for field in ("weight", "minimum_nodes", "maximum_nodes"):
        if not getattr(entry, field) >= 0:
            raise ConfigError(f"{place}: {field} is {getattr(entry, field)}; it must be 0 or more")
    if entry.replica_nodes < 1 or not entry.iteration_s > 0:
        raise ConfigError(f"{place}: replica_nodes is {entry.replica_nodes} and iteration_s {entry.iteration_s}; both must be above 0")
    minimum = entry.minimum_nodes or entry.replica_nodes
    maximum = min(entry.maximum_nodes or nodes, nodes)
    if max(minimum, entry.replica_nodes) > maximum:
        raise ConfigError(f"{place}: it needs {max(minimum, entry.replica_nodes)} nodes and may have {maximum}; it can never run")
    rates = throughput_row(models[entry.model], nodes, gpus_per_node)
    return JobMixEntry(
        name=entry.name, weight=entry.weight, minimum=minimum, maximum=maximum, replica=entry.replica_nodes, iteration_s=entry.iteration_s,
        rates=whole_replicas(rates, entry.replica_nodes), template_rates=unequal_pipelines(rates, entry.replica_nodes, models[entry.model].layers),
    )  # fmt: skip


def throughput_row(model: ModelThroughput, nodes: int, gpus_per_node: int) -> NDArray[np.float64]:
    """(nodes + 1,) FLOP/s of all GPUs: per GPU linear in the logarithm of their count between the points.

    Nothing below the first point: there it was not run, or does not fit.
    """
    points = [point for point in model.points if point[1] > 0]
    if not points or [count for count, _ in points] != sorted({count for count, _ in points}):
        raise ConfigError("a model's points must be (GPUs, TFLOP/s of each) with rising GPUs, at least one of them above 0")
    counts = np.arange(nodes + 1) * gpus_per_node
    at = np.log2(np.maximum(counts, 1))
    each = np.interp(at, [np.log2(count) for count, _ in points], [rate for _, rate in points])
    each *= model.beyond ** np.maximum(0.0, at - np.log2(points[-1][0]))
    each[counts < points[0][0]] = 0.0
    rates: NDArray[np.float64] = each * counts * 1e12
    return rates


def whole_replicas(rates: NDArray[np.float64], replica: int) -> NDArray[np.float64]:
    """(nodes + 1,) with whole replicas only."""
    return np.asarray(rates[np.arange(len(rates)) // replica * replica])


def unequal_pipelines(rates: NDArray[np.float64], replica: int, layers: int) -> NDArray[np.float64]:
    """(nodes + 1,) with the nodes left over given to pipelines where they bring most.

    What a pipeline of n nodes does is the pace of its slowest stage, by the planner's templates for equal layers;
    micro-batches are split by pace. Nodes left over go to pipelines by a knapsack.
    """
    whole = whole_replicas(rates, replica)
    if replica == 1 or replica > layers:
        return whole
    extra = _worth_of_extra_nodes(replica, layers)
    counts = np.arange(len(rates))
    share = (counts // replica + extra[counts % replica]) * replica / np.maximum(counts, 1)
    return np.asarray(np.where(counts >= replica, np.maximum(rates * share, whole), 0.0))


def _worth_of_extra_nodes(replica: int, layers: int) -> NDArray[np.float64]:
    """(replica,) what 0, 1, 2, ... nodes beyond whole replicas bring at best, in replicas."""
    chain = LayerChain(tuple(ProfiledLayer(str(index), 1.0, 2.0, 0.0, 0.0) for index in range(layers)))
    cuts = one_stage_per_node(chain, range(replica, min(2 * replica, layers + 1)), four_per_stage)
    gain = {size - replica: cuts[replica].pace / cut.pace - 1 for size, cut in cuts.items() if size > replica}
    best = np.zeros(replica)
    for nodes in range(1, replica):
        best[nodes] = max(best[nodes - 1], *(best[nodes - size] + worth for size, worth in gain.items() if size <= nodes))
    return best
