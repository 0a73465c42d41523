"""RAS's answer in text (NCCL 2.24 and later), made for people: it names the communicators and ranks that stand out, and of those not all.

A communicator may be told twice, with its absent ranks under "Errors" and its lagging ones under "Warnings". Lines of another kind are passed over.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .ras_report import (
    AbsentRank,
    FailedRank,
    LaggingRank,
    OperationLag,
    RankProcess,
    RasCommunicator,
    RasError,
    RasReport,
)

_VERSION = re.compile(r"NCCL version (\S+)")
_GROUP = re.compile(r"\s*(\d+)\s+\d+\s+\d+(?:-\d+)?\s+\d+(?:-\d+)?\s+(?:\d+-)?(\d+)\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*\Z")
"""A row of the summary: number of the group, …, ranks of each communicator."""
_COMMUNICATOR = re.compile(r"#(\d+)-\d+ \(([0-9a-f]{1,16})\) [A-Z]+\Z")
_ABSENT = re.compile(r"  Missing communicator data from (\d+) ranks?\Z")
_ABSENT_NUMBERS = re.compile(r"  The missing ranks?: ([\d, ]+)\Z")
"""NCCL 2.24 and 2.25."""
_COUNTS = re.compile(r"  Communicator ranks have different (\w+) operation counts\Z")
_WITH_COUNT = re.compile(r"  (\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)\Z")
_WITH_STATUS = re.compile(r"  (\d+) ranks have status (\w+)\Z")
_WITH_ERROR = re.compile(r"  \d+ ranks reported (.{1,200})\Z")
_RANK = re.compile(
    r"  Rank (?P<rank>\d{1,9})(?P<what> has status (?P<status>\w+)| has launched up to operation (?P<count>\d+)| has not launched any operations| reported (?P<error>.{1,200}?))?"
    r" -- (?:GPU (?P<gpu>\d+)(?: \(NVML \d+\))? managed by process (?P<pid>\d+) on node (?P<host>\S+)|\[process information not found\])\Z"
)
_PROCESS = re.compile(r"  Process (\d+) on node (\S+) managing GPUs? ")
_COLLECTIVE = "collective"
"""The word in the place of an operation's name where NCCL counts all kinds together (2.24, 2.25)."""
NOT_A_MEMBER = "NOCOMM"
HEADINGS = ("Errors", "Warnings")


class _Error(NamedTuple):
    text: str


_List = Literal["absent", "not a member"] | int | _Error | None
"""What the ranks of a list have in common; a number: operations launched; None: nothing that is read."""


@dataclass
class _Lag:
    operation: str
    ranks: list[LaggingRank] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """Operations launched → ranks that have launched so many."""

    def lag(self) -> OperationLag:
        newest = max(self.counts, default=0)
        behind = sum(ranks for count, ranks in self.counts.items() if count < newest)
        return OperationLag(self.operation, newest, tuple(each for each in self.ranks if each.count < newest), behind)


@dataclass
class _CommunicatorLines:
    size: int
    absent: list[AbsentRank] = field(default_factory=list)
    absent_count: int = 0
    lags: list[_Lag] = field(default_factory=list)
    failed: list[FailedRank] = field(default_factory=list)


class _Reader:
    """Goes through the lines; what a line `Rank 3 -- …` means depends on the line before its list."""

    def __init__(self) -> None:
        self.found: dict[str, _CommunicatorLines] = {}
        self._sizes: dict[str, int] = {}
        self._dead: set[tuple[int, str]] = set()
        self._section = ""
        self._now = _CommunicatorLines(0)
        self._list: _List = None

    def line(self, line: str) -> None:
        if not line.startswith(" "):
            self._head(line)
        elif self._section == "communicator":
            self._detail(line)
        elif self._section == "DEAD" and (process := _PROCESS.match(line)):
            self._dead.add((int(process[1]), process[2]))
        elif row := _GROUP.match(line):
            self._sizes[row[1]] = int(row[2])

    def communicators(self) -> tuple[RasCommunicator, ...]:
        return tuple(
            RasCommunicator(
                name, each.size, tuple(AbsentRank(rank.process, rank.unresponsive, (rank.process.pid, rank.process.host) in self._dead) for rank in each.absent),
                max(each.absent_count, len(each.absent)), tuple(lag for told in each.lags if (lag := told.lag()).count), tuple(each.failed),
            )
            for name, each in self.found.items()
        )  # fmt: skip

    def _head(self, line: str) -> None:
        if told := _COMMUNICATOR.match(line):
            self._section, self._list = "communicator", None
            self._now = self.found.setdefault(f"0x{int(told[2], 16):x}", _CommunicatorLines(self._sizes.get(told[1], 0)))
        elif line:
            self._section = line

    def _detail(self, line: str) -> None:
        """A line below a communicator."""
        if rank := _RANK.match(line):
            self._rank(rank)
        elif told := _ABSENT.match(line):
            self._now.absent_count, self._list = int(told[1]), "absent"
        elif told := _ABSENT_NUMBERS.match(line):
            self._now.absent += [AbsentRank(RankProcess(int(number))) for number in re.findall(r"\d{1,9}", told[1])]
        elif told := _COUNTS.match(line):
            self._now.lags.append(_Lag("" if told[1] == _COLLECTIVE else told[1]))
            self._list = None
        elif told := _WITH_COUNT.match(line):
            self._list = self._counted(int(told[2] or 0), int(told[1]))
        elif told := _WITH_STATUS.match(line):
            not_a_member = told[2] == NOT_A_MEMBER
            self._now.absent_count += int(told[1]) if not_a_member else 0
            self._list = "not a member" if not_a_member else None
        elif told := _WITH_ERROR.match(line):
            self._list = _Error(told[1])

    def _counted(self, count: int, ranks: int) -> int:
        if self._now.lags:
            counts = self._now.lags[-1].counts
            counts[count] = counts.get(count, 0) + ranks
        return count

    def _rank(self, told: re.Match[str]) -> None:
        """One rank: of the list that it stands in, or with what it alone has."""
        process = RankProcess(int(told["rank"]), told["host"] or "", int(told["pid"] or 0), int(told["gpu"] or -1))
        of = self._list if told["what"] is None else self._alone(told)
        if of == "absent":
            self._now.absent.append(AbsentRank(process))
        elif of == "not a member":
            self._now.absent.append(AbsentRank(process, unresponsive=False))
        elif isinstance(of, _Error):
            self._now.failed.append(FailedRank(process, of.text))
        elif isinstance(of, int) and self._now.lags:
            self._now.lags[-1].ranks.append(LaggingRank(process, of))

    def _alone(self, told: re.Match[str]) -> _List:
        if told["error"]:
            return _Error(told["error"])
        if told["status"]:
            not_a_member = told["status"] == NOT_A_MEMBER
            self._now.absent_count += not_a_member
            return "not a member" if not_a_member else None
        return self._counted(int(told["count"] or 0), 1)


def whole_text(data: bytes) -> bytes:
    """The answer of a connection. Raises RasError where it ends before the last heading, which every answer has."""
    if b"Warnings" not in data.splitlines():
        raise RasError(f"its text of {len(data)} bytes ends early, or is of another version")
    return data


def read_text(data: bytes) -> RasReport:
    """An answer, or the part of one that somebody kept: its table of communicators, errors or warnings. Raises RasError for what has none of them."""
    text = data.decode("utf-8", "replace")
    lines = text.splitlines()
    if not any(line in HEADINGS or _GROUP.match(line) or _COMMUNICATOR.match(line) for line in lines):
        raise RasError(f"its text of {len(data)} bytes ends early, or is of another version")
    reader = _Reader()
    try:
        for line in lines:
            reader.line(line)
    except ValueError:  # a number of more digits than Python reads
        raise RasError("its text holds a number that cannot be") from None
    version = _VERSION.search(text)
    return RasReport(version[1] if version else "", reader.communicators())
