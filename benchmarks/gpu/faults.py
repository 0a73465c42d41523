"""Faults of a program on a real GPU, and their innocent twins: is each told for what it is, and nobody else accused? Needs a GPU: without one it ends with 2.

    python -m benchmarks.gpu.faults [--only NAME ...] [--keep DIR] [--json]

Each case is a job of its own on one node, under a server in auto mode with its shipped settings: a kernel that writes where nothing is (Xid 31), an
assertion on the GPU, more memory than there is, a deadlock of one rank, a kernel that never ends, a SIGKILL, a loss that is no number. The twins: a
healthy life with a kernel of several seconds, a captured graph or a compilation; a stranger's program that faults on the same GPU, and one that takes
half of it. The ranks share one GPU, so they talk by gloo. What goes wrong does so once: the job has to end well after it.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.harm.deployment import Deployment, Turns, leftovers, results_of, say, until
from benchmarks.report import Row, report
from eagle_eye.ports import free_port
from eagle_eye.types import Incident, Severity

NO_GPU = 2
WARM_STEPS = 30
START_S, END_S, SETTLE_S, GRACE_S = 90.0, 90.0, 3.0, 20.0
TROUBLE = "import benchmarks.gpu.kernels as kernels, torch; kernels.write_wildly(); torch.cuda.synchronize()"
LOAD = "import torch; a = torch.randn(8192, 8192, device='cuda')\nwhile True: a @ a; torch.cuda.synchronize()"
"""Programs of a stranger on the same GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job."""

    name: str
    fault: str = "none"
    """Of benchmarks/gpu/train.py."""
    rank: int = 0
    workers: int = 2
    causes: tuple[str, ...] = ()
    """Those that are right; none: an innocent."""
    stranger: str = ""
    """What another program does meanwhile."""
    ends: bool = True
    """The job is over by itself, and well."""


CASES = (
    Case(name="kernel that writes where nothing is", fault="wild kernel", workers=1, causes=("program error on the gpu", "illegal memory access")),
    Case(name="the same on one rank of two", fault="wild kernel", rank=1, causes=("program error on the gpu", "illegal memory access")),
    Case(name="assertion on the GPU", fault="assertion", rank=1, causes=("exception", "cuda error", "program error on the gpu")),
    Case(name="more memory than there is", fault="out of memory", rank=1, causes=("out of memory",)),
    Case(name="deadlock of one rank", fault="deadlock", rank=1, causes=("python hang",)),
    Case(name="SIGKILL", fault="killed", rank=1, causes=("worker killed",)),
    Case(name="loss that is no number", fault="bad loss", rank=1, causes=("loss not finite",)),
    Case(name="healthy: a kernel of several seconds", fault="long kernel", rank=1),
    Case(name="healthy: a captured graph", fault="graph", rank=1),
    Case(name="healthy: a compilation", fault="compilation", rank=1),
    Case(name="healthy: a stranger's program faults", stranger=TROUBLE),
    Case(name="healthy: a stranger's program takes half of the GPU", stranger=LOAD),
    Case(name="kernel that never ends", fault="endless kernel", rank=1, causes=("python hang", "pause", "job stalled"), ends=False),
)


@dataclass(slots=True, kw_only=True)
class CaseResult:
    """What came of one."""

    case: Case
    incidents: tuple[Incident, ...] = ()
    """Last revisions."""
    told_s: float | None = None
    """From the fault to the first revision that names a right cause."""
    gpu_events: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    epochs: int = 0
    ended_well: bool = False
    trouble: str = field(default="")

    @property
    def asking(self) -> list[Incident]:
        """Those that ask for a repair."""
        return [each for each in self.incidents if each.severity is not Severity.INFO]

    @property
    def wrongly(self) -> list[str]:
        """Who is accused and is not the rank of the fault."""
        accused = [culprit.entity.name for each in self.incidents for culprit in each.culprits]
        return [name for name in accused if not (self.case.causes and name.endswith(f"/{self.case.rank}"))]

    @property
    def right(self) -> bool:
        if not self.case.causes:
            return not self.asking and not self.wrongly and self.epochs == 1 and self.ended_well
        told = [each for each in self.incidents if each.cause in self.case.causes]
        return bool(told) and not self.wrongly and all(each.cause in self.case.causes for each in self.asking) and (self.ended_well or not self.case.ends)

    def story(self) -> str:
        """For a person who watches."""
        lines = [f"{'right' if self.right else 'WRONG'} {self.case.name}: told after {self.told_s or 0.0:.2f} s, {self.epochs} epochs, ended well: {self.ended_well}; {self.gpu_events}"]
        lines += [f"  {each.severity.name} {each.cause} {[str(culprit) for culprit in each.culprits]}" for each in self.incidents]
        lines += [f"    {line.text}" for each in self.incidents for line in each.evidence[:6]]
        return "\n".join([*lines, *([f"  repairs {self.repairs}"] if self.repairs else []), *([self.trouble] if self.trouble else [])])


class CaseJob:
    """One case from its start to its end."""

    def __init__(self, deployment: Deployment, number: int, case: Case, device: str) -> None:
        self._deployment, self._case, self._device = deployment, case, device
        self._short, self._node = f"gpu{number}", f"n{number}"
        self._name = f"bench/{self._short}/run-1"
        self._folder = deployment.folder / "jobs" / self._short
        self._stranger: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def run(self) -> Turns[CaseResult]:
        """Start, watch, end."""
        self._start()
        trouble = ""
        try:
            if not (yield from until(lambda: self._steps > WARM_STEPS or self._over, START_S)):
                trouble = f"it did not begin to train\n{self._deployment.cluster.tail(f'launcher-{self._node}', 20)}\n"
            self._began = time.time()
            if self._case.stranger:
                self._stranger = subprocess.Popen([sys.executable, "-c", self._case.stranger], stderr=subprocess.DEVNULL)
            yield from until(lambda: self._over or (not self._case.ends and bool(self._told)), END_S)
            yield from until(lambda: bool(self._told) or not self._case.causes, SETTLE_S)
            yield from until(lambda: False, SETTLE_S)
        finally:
            yield from self._stop()
        return self._result(trouble)

    @property
    def _launcher(self) -> "subprocess.Popen[bytes]":
        return self._deployment.cluster.nodes[self._node].launcher

    @property
    def _over(self) -> bool:
        return self._launcher.poll() is not None

    @property
    def _steps(self) -> int:
        """That rank 0 has done."""
        try:
            return int((self._folder / "steps-0").read_text() or 0)
        except OSError:
            return 0

    @property
    def _told(self) -> list[Incident]:
        return [each for each in self._deployment.incidents(self._name) if each.cause in self._case.causes]

    def _start(self) -> None:
        self._folder.mkdir(parents=True)
        rendezvous = f"127.0.0.1:{free_port()}"
        script = ["--folder", str(self._folder), "--fault", self._case.fault, "--rank", str(self._case.rank), "--device", self._device]
        launch = [
            "--listen", rendezvous, "--rdzv", rendezvous, "--job", f"bench/{self._short}", "--run-id", "run-1", "--nnodes", "1",
            "--nproc-per-node", str(self._case.workers), "--", sys.executable, "-m", "benchmarks.gpu.train", *script,
        ]  # fmt: skip
        self._deployment.cluster.start_node(self._node, launch)

    def _stop(self) -> Turns[None]:
        if self._stranger is not None:
            self._stranger.kill()
            self._stranger.wait()
        for process in (self._launcher, self._deployment.cluster.nodes[self._node].agent):
            process.terminate()
            yield from until(lambda process=process: process.poll() is not None, GRACE_S)  # type: ignore[misc]
            if process.poll() is None:
                process.kill()
                process.wait()

    def _result(self, trouble: str) -> CaseResult:
        last = {each.id: each for each in self._deployment.incidents(self._name)}
        record, told, struck = self._deployment.record(self._name), self._told, self._folder / "struck"
        began = float(struck.read_text()) if struck.exists() else self._began
        events = [f"{event.name} {event.attributes.get('code', '')}".strip() for event in record.events if event.name.startswith("gpu.")]
        result = CaseResult(
            case=self._case, incidents=tuple(last.values()), told_s=told[0].time - began if told else None, gpu_events=tuple(events),
            repairs=tuple(str(outcome.action) for outcome in self._deployment.repairs(self._name)),
            epochs=len({layout.epoch for layout in record.layouts}), ended_well=self._launcher.returncode == 0, trouble=trouble,
        )  # fmt: skip
        if not result.right:
            result.trouble += self._deployment.cluster.tail(f"launcher-{self._node}", 12)
        return result


def rows_of(results: Sequence[CaseResult]) -> list[Row]:
    """One for each case, and the sums."""
    rows = [
        Row(
            each.case.name, f"{', '.join(dict.fromkeys(incident.cause for incident in each.incidents)) or 'nothing told'}{_after(each)}",
            " or ".join(each.case.causes) or "nobody accused, nothing done", each.right,
        )
        for each in results
    ]  # fmt: skip
    wrongly = [name for each in results for name in each.wrongly]
    evictions = [action for each in results for action in each.repairs if "evict" in action]
    return [
        *rows,
        Row("healthy workers, GPUs and nodes accused", str(len(wrongly)), "0", not wrongly),
        Row("evictions", str(len(evictions)), "0", not evictions),
    ]


def _after(result: CaseResult) -> str:
    return f" after {result.told_s:.2f} s" if result.told_s is not None else ""


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="cases with one of these texts in their names")
    parser.add_argument("--at-once", type=int, default=1, help="cases beside one another (1): a fault of the GPU is told to all jobs on it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: for a look at the cases that are no GPU's")
    parser.add_argument("--keep", type=Path, help="copy the logs and the incidents there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use: nothing to run", file=sys.stderr)
        return NO_GPU
    cases = [case for case in CASES if not options.only or any(text in case.name for text in options.only)]
    with tempfile.TemporaryDirectory(prefix="gpu") as name:
        deployment = Deployment(Path(name))
        try:
            results = results_of(deployment, (CaseJob(deployment, number, case, options.device).run() for number, case in enumerate(cases)), options.at_once, CaseResult.story)
        finally:
            deployment.close()
            if options.keep:
                shutil.copytree(Path(name) / "logs", options.keep / "logs", dirs_exist_ok=True)
        left = leftovers(Path(name))
    say("\n".join(left))
    if options.keep:
        (options.keep / "stories.json").write_text(json.dumps([each.story().splitlines() for each in results], indent=1))
    rows = [*rows_of(results), Row("processes left behind", str(len(left)), "0", not left)]
    return report(rows, options.json, f"faults on {torch.cuda.get_device_name() if options.device == 'cuda' else 'the CPU'}")


if __name__ == "__main__":
    sys.exit(main())
