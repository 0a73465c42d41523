"""Ten minutes of 10,000 nodes on disk, as the history and the ledger would hold them; the same for the same arguments.

Straight into Parquet files of the history's own layout, with its own writer of columns: through the stream it would take
as long as it lasts. Numbers are as coarse as a driver reports them (whole watts, degrees, percents).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from eagle_eye.history.file_names import HistoryFile
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.parquet_tables import ROW_GROUP, STEP_KEYS, writer_of
from eagle_eye.ledger import Ledger
from eagle_eye.types import (
    Culprit,
    Entity,
    Evidence,
    Finding,
    Incident,
    IncidentState,
    Kind,
    Layout,
    Plan,
    RankPlacement,
    Severity,
    Target,
)
from eagle_eye.types.remediation import Allow, Alternative, Hold

GPUS = 8
WINDOW_S = 30
STEP_S = 5
"""A step of a job in so many seconds."""
SLOW = "run/node-00017/3"
"""The straggler of the first job."""
GPU_METRICS = {"utilisation_percent": (90, 10), "power_watts": (550, 150), "temperature_celsius": (60, 15), "memory_percent": (80, 4), "sm_clock_mhz": (1600, 300), "throttle_reasons": (0, 2)}
NODE_METRICS = {"cpu_percent": (20, 30), "memory_percent": (40, 5), "load_1": (10, 8), "net_sent_bytes_per_s": (1_000_000, 1_000)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeCluster:
    """What is made. The first job has half of the nodes, the others 500 each."""

    nodes: int = 10_000
    seconds: int = 600
    begin: float = 1_760_000_400.0
    """A multiple of the window."""

    @property
    def end(self) -> float:
        return self.begin + self.seconds

    @property
    def names(self) -> list[str]:
        return [f"node-{number:05}" for number in range(self.nodes)]

    @property
    def jobs(self) -> dict[str, Sequence[str]]:
        """Full name → nodes."""
        names, half, each = self.names, self.nodes // 2, max(1, self.nodes // 20)
        jobs: dict[str, Sequence[str]] = {"lab/large/run": names[:half]}
        return jobs | {f"lab/job-{begin // each:02}/run": names[begin : begin + each] for begin in range(half, self.nodes, each)}

    def write(self, state: Path) -> Iterator[str]:
        """Put it into a state directory; yields what was done, for whoever waits."""
        state.mkdir(parents=True, exist_ok=True)
        place = ObjectStore.of(state / "history")
        chance = np.random.default_rng(7)
        for number, begin in enumerate(range(0, self.seconds, WINDOW_S)):
            self._readings(place, number, begin, "gpu/gpu", GPU_METRICS, GPUS, chance)
            self._readings(place, number, begin, "node/host", NODE_METRICS, 1, chance)
            self._steps(place, number, begin, chance)
            yield f"{begin + WINDOW_S} of {self.seconds} s"
        self._ledger(state / "ledger.sqlite")
        yield "ledger"

    # --- the history -----------------------------------------------------------------------------------------------

    def _readings(self, place: ObjectStore, number: int, begin: int, table: str, metrics: dict[str, tuple[int, int]], each: int, chance: Any) -> None:
        """Node by node, second by second, as the history's writer orders them."""
        entities = self.names if each == 1 else [f"GPU-{name}-{slot}" for name in self.names for slot in range(each)]
        rows = self.nodes * WINDOW_S * each
        node = np.repeat(np.arange(self.nodes), WINDOW_S * each)
        second = np.tile(np.repeat(np.arange(WINDOW_S), each), self.nodes)
        entity = node * each + np.tile(np.arange(each), self.nodes * WINDOW_S)
        columns = self._keys(node, entity, entities, self.begin + begin + second)
        for name, (low, width) in metrics.items():
            columns[name] = pa.array((low + chance.integers(0, width, rows)).astype(np.float32))
        self._put(place, number, begin, table, pa.table(columns))

    def _steps(self, place: ObjectStore, number: int, begin: int, chance: Any) -> None:
        """Every worker of every job completes a step each STEP_S; the others wait for the straggler."""
        workers = [f"run/{name}/{slot}" for name in self.names for slot in range(GPUS)]
        count, steps = len(workers), WINDOW_S // STEP_S
        node = np.repeat(np.arange(self.nodes), steps * GPUS)
        within = np.tile(np.repeat(np.arange(steps), GPUS), self.nodes)
        worker = node * GPUS + np.tile(np.arange(GPUS), self.nodes * steps)
        rows = count * steps
        compute = chance.integers(3000, 3100, rows) / 1000 + 1.5 * (worker == workers.index(SLOW))
        step = begin // STEP_S + within
        columns = self._keys(node, worker, workers, self.begin + begin + (within + 1) * STEP_S - chance.random(rows) * 0.05)
        columns |= {"step": pa.array(step), "epoch": pa.array(np.ones(rows, np.int64))}
        numbers = {
            "step_s": np.full(rows, STEP_S - 0.05), "data_s": chance.integers(1, 20, rows) / 1000, "forward_s": compute / 3, "backward_s": compute * 2 / 3,
            "communication_s": STEP_S - 0.05 - compute, "optimizer_s": np.full(rows, 0.04), "loss": 10 / (1 + step) ** 0.2, "tokens": np.full(rows, 4096),
        }  # fmt: skip
        columns |= {name: pa.array(values.astype(np.float32)) for name, values in numbers.items()}
        self._put(place, number, begin, "steps/training", pa.table(columns))

    def _keys(self, node: Any, entity: Any, entities: Sequence[str], times: Any) -> dict[str, Any]:
        jobs = self.jobs
        job_of = np.concatenate([np.full(len(nodes), index) for index, nodes in enumerate(jobs.values())])
        return {
            "time": pa.array((times * 1e6).astype(np.int64), pa.timestamp("us", "UTC")),
            "job": _words(job_of[node], list(jobs)),
            "node": _words(node, self.names),
            "entity": _words(entity, entities),
        }

    def _put(self, place: ObjectStore, number: int, begin: int, table: str, rows: Any) -> None:
        path = place.new(f"{table.replace('/', '-')}.parquet")
        writer = writer_of(path, rows.slice(0, ROW_GROUP), [name for name in STEP_KEYS if name in rows.column_names])
        writer.write_table(rows, row_group_size=ROW_GROUP)
        writer.close()
        window = int(self.begin + begin)
        file = HistoryFile(table=table, window=window, partition=0, first=number * 1000, last=number * 1000 + 999, earliest=window, latest=window + WINDOW_S, schema="bench")
        place.put(path, file)

    # --- the ledger ------------------------------------------------------------------------------------------------

    def _ledger(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        ledger = Ledger.open(path)
        for job, nodes in self.jobs.items():
            ledger.save_job(job, self._layout(job, nodes), "127.0.0.1:1", "restart:3", 3)
        for number in range(300):
            self._incident(ledger, number)
        ledger.close()

    def _layout(self, job: str, nodes: Sequence[str]) -> Layout:
        spots = [(name, slot) for name in nodes for slot in range(GPUS)]
        places = tuple(RankPlacement(worker=f"run/{name}/{slot}", node=name, rank=rank, local_rank=slot, gpu=f"GPU-{name}-{slot}") for rank, (name, slot) in enumerate(spots))
        return Layout(job=job, epoch=1, time=self.begin, coordinator=nodes[0], launchers=dict.fromkeys(nodes, "127.0.0.1:1"), placements=places)

    def _incident(self, ledger: Ledger, number: int) -> None:
        """Number 0 is open, about the straggler, and waits for a person."""
        time = self.end - 120.0 - number * 60.0
        worker = Entity(kind=Kind.WORKER, name=SLOW if number == 0 else f"run/node-{number:05}/0")
        proof = Evidence(text="its compute takes 1.49 times that of its peers", metric="compute_ratio", value=1.49, threshold=1.3)
        finding = Finding(
            id=f"finding-{number}", revision=1, detector="straggler", digest="d", job="lab/large/run", entity=worker, kind="worker.slow", score=0.9,
            since=time, time=time + 3, evidence=(proof,), active=number == 0,
        )  # fmt: skip
        incident = Incident(
            id=f"incident-{number:03}", revision=1, job="lab/large/run", cause="slow worker", culprits=(Culprit(entity=worker, confidence=0.9),), severity=Severity.SEV2,
            findings=(finding.id,), evidence=(proof,), since=time, time=time + 4, bill_gpu_hours=12.5, parts=(finding,),
        )  # fmt: skip
        ledger.save_findings([finding])
        ledger.save_incident(incident, IncidentState.OPEN)
        target = Target(job=incident.job, epoch=1, basis="b", exclude=("node-00017",))
        gpus = self.nodes // 2 * GPUS
        plan = Plan(
            id=f"plan-{number}", incident=incident.id, action="evict_node", targets=(target,), made=time + 5, expires=self.end + 1800.0, severity=Severity.SEV2,
            reason=f"slow worker: 95 s of standstill, then {GPUS} of {gpus:,} GPUs fewer", cost=95.0 * gpus, benefit=0.3 * 3600.0 * gpus,
            alternatives=(Alternative(action="nothing", why="runs at 70% of its throughput", cost=0.3 * 3600.0 * gpus),),
        )  # fmt: skip
        ledger.save_plan(plan)
        ledger.save_verdict(plan, Allow(guard="cooldown"), time + 5)
        if number:
            ledger.move_incident(incident.id, IncidentState.HEALED, time + 50)
        else:
            ledger.save_verdict(plan, Hold(guard="approval", reason="the mode is recommend"), time + 5)


def _words(codes: Any, words: Sequence[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(list(words), pa.string()))
