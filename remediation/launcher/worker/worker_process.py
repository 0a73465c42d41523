"""What the launcher knows of one worker process."""

from pathlib import Path

import msgspec

from eagle_eye.types import RankPlacement
from remediation.launcher.coordinator.failure_signature import FailureSignature

from .memory_cgroup import OomKill


class Worker(msgspec.Struct, kw_only=True):
    """One process of one epoch."""

    place: RankPlacement
    epoch: int
    born: int = 0
    """Epoch in which it was forked: an elastic one lives on in later ones."""
    pid: int
    start_time: int
    secret: str
    tokens: int = 0
    """Handed out so far."""
    log: Path
    log_from: int
    """Length of the log when this process began."""
    ring: Path
    socket: Path
    began: float
    status: int | None = None
    ended_s: float | None = None
    """When it ended, by CLOCK_MONOTONIC, if that is known; a launcher that was stopped hears of it later."""
    raised_s: float | None = None
    """The same of the exception that it announced."""
    ordered_s: float | None = None
    """When the launcher ordered its end, by CLOCK_MONOTONIC; None if it did not."""
    dying: bool = False
    """It was seen to end before anybody had ordered that."""
    doubtful: bool = False
    """That was seen only as its end was about to be ordered: it may have missed a peer that was ended a moment before."""
    noticed: bool = False
    """Its death was reported, or needs not be."""
    end: int | None = None
    """Status with which its end was reported; the kernel may still be at its teardown."""
    exception: str = ""
    """Type of the exception that it announced."""
    failure: FailureSignature | None = None
    """That exception, if it is one of the program's own."""
    failed_by: str = ""
    """Id of the event of that exception."""
    explained: str = ""
    """Status of hardware, network or storage that this exception tells."""
    symptom: bool = False
    """That exception is what also a healthy worker raises when a peer is gone."""
    oom_kill: OomKill | None = None
    """The kill for want of memory of which it raised that exception, or died."""
    elastic: bool = False
    """It lives through epochs, or was forked to join one."""
    fenced: bool = False
    """It is excluded from the job until it enters again: its messages do not count."""
    expected: bool = False
    """It was asked to end by itself."""
    member: bool = False
    """It has been part of an epoch of elastic workers."""
    replaced: bool = False
    """Another process has its slot."""
    reported: bool = False
    """The coordinator knows of its death."""
    overtaken: bool = False
    """The order to end it came before its death was noticed: its death is not told."""

    @property
    def ordered(self) -> bool:
        """The launcher ended it itself."""
        return self.ordered_s is not None

    def order_end(self, now: float) -> None:
        """The launcher is about to end it, unless it is dying already."""
        if self.ordered_s is None and not self.dying:
            self.ordered_s = now

    @property
    def running(self) -> bool:
        return self.status is None and not self.noticed

    @property
    def name(self) -> str:
        return self.place.worker
