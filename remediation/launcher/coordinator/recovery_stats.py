"""What a recovery in place cost, from the reports of the workers: one for each transition."""

import math

import msgspec

from eagle_eye.types import Transition, WorkerStateReport

ORDER = ("idle", "starting", "computing", "reducing", "committing", "applying")

PARTS = ("notice_s", "plan_s", "group_s", "state_s", "recompute_s")


class RecoveryStats(msgspec.Struct, kw_only=True):
    """Of one transition; whole once every worker has committed a step."""

    epoch: int
    waited_for: set[str]
    """Workers that have not yet committed a step."""
    words: dict[str, str]
    times: dict[str, float]
    """Seconds: the longest of all workers, but of the group the shortest."""
    recomputed: set[int]
    lost: set[str]
    """Workers, also those of an epoch that was overtaken before it trained."""
    bytes: int = 0
    """Of state, that arrived where it was lacking."""
    overtaken: dict[str, float] = {}
    """Seconds that transitions took which this one overtook before they were done."""

    @classmethod
    def of(cls, transition: Transition, holdings: list[WorkerStateReport], lost: set[str]) -> "RecoveryStats":
        """Open it when the workers are regrouped."""
        kept = {number for held in holdings if held.step == transition.step and not held.fresh for number in held.done}
        phase = max((held.phase for held in holdings if not held.fresh), key=ORDER.index, default="starting")
        words = {
            "epoch": str(transition.epoch), "step": str(transition.step), "phase": phase, "lost": ",".join(sorted(lost)),
            "lost_micro_batches": ",".join(map(str, transition.lost_micro_batches)),
            "kept": str(len(kept)), "moves": str(len(transition.moves)), "source": transition.source,
        }  # fmt: skip
        return cls(
            epoch=transition.epoch, waited_for=set(transition.target.workers), words=words, times={}, recomputed=set(),
            lost=lost,
        )  # fmt: skip

    def overtake(self, other: "RecoveryStats") -> None:
        """A transition after a loss was not done when this one began: the loss and what it cost are told with this one."""
        if not other.lost:
            return
        if not self.lost:
            self.words |= {name: other.words[name] for name in ("reason", "cause")}
        self.lost |= other.lost
        self.words["lost"] = ",".join(sorted(self.lost))
        self.recomputed |= other.recomputed
        self.bytes += other.bytes
        self.overtaken = {name: other.seconds(name) for name in PARTS}

    def took(self, name: str, seconds: float) -> None:
        """A part of it took so long somewhere."""
        self.times[name] = max(self.times.get(name, 0.0), seconds)

    def regrouped(self, timings: dict[str, float]) -> None:
        """A worker is in the new group, its state whole."""
        self.bytes += int(timings.get("bytes", 0))
        if "state_s" in timings:
            self.took("state_s", float(timings["state_s"]))
        if "group_s" in timings:  # all but the last to come wait for those that still compute, which is no cost of the group
            self.times["group_s"] = min(self.times.get("group_s", math.inf), float(timings["group_s"]))

    def resumed(self, worker: str, recompute_s: float, recomputed: tuple[int, ...]) -> bool:
        """A worker has committed its first step; whether it was the last to do so."""
        self.took("recompute_s", recompute_s)
        self.recomputed |= set(recomputed)
        self.waited_for.discard(worker)
        return not self.waited_for

    def seconds(self, part: str) -> float:
        """That one of its parts took, with what it overtook."""
        return self.times.get(part, 0.0) + self.overtaken.get(part, 0.0)

    @property
    def attributes(self) -> dict[str, str]:
        """Of the event `transition.done`."""
        times = {name: f"{self.seconds(name):.6f}" for name in PARTS}
        recomputed = ",".join(map(str, sorted(self.recomputed)))
        return self.words | times | {"recomputed": recomputed, "bytes": str(self.bytes)}
