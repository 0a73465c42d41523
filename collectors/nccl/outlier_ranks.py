"""Communicators of a job in which ranks stand out at two looks in a row, in words and as attributes of an event. No I/O.

Ranks of a healthy communicator differ by an operation or two whenever one looks, and while it begins or ends some are no members: what two looks
show alike stands. It tells who lags, not why: a rank may lag since it waits itself in another communicator.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .ras_report import RankProcess, RasCommunicator, RasReport

MOST_NAMED = 64
"""Ranks of one kind in an event."""
MOST_IN_WORDS = 8


@dataclass(frozen=True, slots=True)
class OutlierRanks:
    """A communicator with ranks that stand out."""

    communicator: RasCommunicator
    ranks_of_job: Mapping[int, int]
    """Its ranks, as those of the job where that is known: of outliers alone."""

    @property
    def attributes(self) -> dict[str, str]:
        """Ranks are the job's where all are known, else the communicator's own (`numbered_by`)."""
        told = self.communicator
        lag = told.lags[0] if told.lags else None
        return {
            "communicator": told.name,
            "size": str(told.size),
            "numbered_by": "job" if self._of_job else "communicator",
            "unresponsive": self._numbers(each.process for each in told.absent if each.unresponsive),
            "dead": self._numbers(each.process for each in told.absent if each.dead),
            "not_members": self._numbers(each.process for each in told.absent if not each.unresponsive),
            "failed": self._numbers(each.process for each in told.failed),
            "lagging": self._numbers(each.process for each in lag.ranks) if lag else "",
            "lagging_count": str(lag.count) if lag else "",
            "operation": lag.operation if lag else "",
            "newest": str(lag.newest) if lag else "",
        }

    def __str__(self) -> str:
        told = self.communicator
        head = f"communicator {told.name}{f' of {told.size} ranks' if told.size else ''}"
        return f"NCCL RAS: {head}: {'; '.join(self._parts())}"

    def _parts(self) -> Iterator[str]:
        told = self.communicator
        silent = [each.process for each in told.absent if each.unresponsive]
        if silent:
            dead = sum(each.dead for each in told.absent)
            yield f"{self._words(silent)} not answering{f' ({dead} given up)' if dead else ''}"
        elif told.absent_count and not told.absent:
            yield f"{told.absent_count} ranks not answering"
        if gone := [each.process for each in told.absent if not each.unresponsive]:
            yield f"{self._words(gone)} not in it"
        for error in dict.fromkeys(each.error for each in told.failed):
            yield f"{self._words([each.process for each in told.failed if each.error == error])} failed: {error}"
        for lag in told.lags[:2]:
            yield f"{lag.operation or 'operation'} {lag.newest} not launched by {self._words([each.process for each in lag.ranks], lag.count)}"

    def _words(self, processes: Sequence[RankProcess], count: int = 0) -> str:
        count = max(count, len(processes))
        if not processes:
            return f"{count} ranks"
        if count == 1 and str(processes[0]):
            return f"rank {self._number(processes[0])} ({processes[0]})"
        named = ", ".join(str(self._number(each)) for each in processes[:MOST_IN_WORDS])
        more = count - min(len(processes), MOST_IN_WORDS)
        return f"{'rank' if count == 1 else 'ranks'} {named}{f' and {more} more' if more else ''}"

    def _numbers(self, processes: Iterable[RankProcess]) -> str:
        return ",".join(str(self._number(each)) for each in list(processes)[:MOST_NAMED])

    def _number(self, process: RankProcess) -> int:
        return self.ranks_of_job.get(process.rank, process.rank) if self._of_job else process.rank

    @property
    def _of_job(self) -> bool:
        """Whether each of its outliers is known in the job."""
        return all(each.rank in self.ranks_of_job for each in _outliers(self.communicator))


class OutlierMemory:
    """What was seen at the look before, and what was told."""

    def __init__(self) -> None:
        self._seen: dict[str, RasCommunicator] = {}
        self._told: dict[str, RasCommunicator] = {}

    @property
    def unconfirmed(self) -> bool:
        """Something stands out that was not told: another look may confirm it."""
        return any(self._told.get(name) != each for name, each in self._seen.items())

    @property
    def told(self) -> bool:
        """Something that was told is not over."""
        return bool(self._told)

    def look(self, report: RasReport, world_size: int) -> tuple[list[OutlierRanks], list[str]]:
        """(what stands out as at the look before and is not told yet, the largest first; names of communicators that were told and stand no more)."""
        before, self._seen = self._seen, {each.name: each for each in report.communicators if each.stands_out}
        alike = (_alike(before[name], each) for name, each in self._seen.items() if name in before)
        standing = {each.name: each for each in alike if each.stands_out}
        new = [each for name, each in standing.items() if self._told.get(name) != each]
        over = [name for name in self._told if name not in standing]
        self._told = standing
        ranks = _ranks_of_job(report, world_size)
        return [OutlierRanks(each, _known(each, world_size, ranks)) for each in sorted(new, key=lambda each: -each.size)], over


def _alike(before: RasCommunicator, now: RasCommunicator) -> RasCommunicator:
    """What both looks show; ranks whose counts went on do not lag."""
    is_absent, lag, fail = before.absent == now.absent and before.absent_count == now.absent_count, before.lags == now.lags, before.failed == now.failed
    return replace(
        now, absent=now.absent if is_absent else (), absent_count=now.absent_count if is_absent else 0,
        lags=now.lags if lag else (), failed=now.failed if fail else (),
    )  # fmt: skip


def _outliers(told: RasCommunicator) -> Iterator[RankProcess]:
    yield from (each.process for each in told.absent)
    yield from (each.process for each in told.failed)
    yield from (each.process for lag in told.lags for each in lag.ranks)


def _ranks_of_job(report: RasReport, world_size: int) -> dict[tuple[str, int, int], int]:
    """(host, pid, GPU) → rank in the job: by a communicator of all ranks, which numbers them as the job does."""
    world = next((each.name for each in report.communicators if world_size and each.size == world_size), "")
    return {(each.host, each.pid, each.gpu): each.rank for each in report.members.get(world, ()) if each.pid}


def _known(told: RasCommunicator, world_size: int, ranks: Mapping[tuple[str, int, int], int]) -> dict[int, int]:
    if world_size and told.size == world_size:
        return {each.rank: each.rank for each in _outliers(told)}
    return {each.rank: ranks[key] for each in _outliers(told) if (key := (each.host, each.pid, each.gpu)) in ranks}
