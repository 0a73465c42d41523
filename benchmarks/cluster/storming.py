"""A detector that cries for everybody: what a job of 80,000 workers shows within a minute when one of them dies."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Evidence, Kind

STATUS = "connection refused or reset"
"""In the table of statuses a symptom: what a healthy worker says when a peer is gone."""


@dataclass
class Storm:
    """From the first exit of the job on it claims `per_tick` further workers every tick, each with words of its own."""

    job: str = ""
    """Only in this one."""
    per_tick: int = 1250
    ticks: int = 60
    _workers: tuple[str, ...] = field(default=(), init=False)
    _told: int = field(default=-1, init=False)
    """Ticks since the storm began; -1 before."""

    def update(self, frame: Frame, /) -> Iterable[Claim]:
        if frame.job != self.job:
            return
        if self._told < 0:
            if not any(event.name == "exit" for event in frame.events) or frame.layout is None:
                return
            self._workers, self._told = frame.layout.workers, 0
        if not frame.tick or self._told >= self.ticks:
            return
        begin = self._told * self.per_tick
        self._told += 1
        for index in range(begin, begin + self.per_tick):
            worker = self._workers[index % len(self._workers)]
            words = f"{worker} raised ConnectionResetError: [Errno 104] by peer in step {index}"
            proof = Evidence(text=words, status=STATUS)
            yield Claim(
                entity=Entity(kind=Kind.WORKER, name=worker), kind="worker.exception", score=0.9, since=frame.time, evidence=(proof,)
            )
