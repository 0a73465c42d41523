"""RAS's answer in JSON (NCCL 2.28.7 and later): all that RAS has collected, which this reads down to the ranks that stand out.

Fields that a later NCCL adds are passed over, those that it leaves out count as not told.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

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

ERRORS = {1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument", 5: "Invalid usage", 6: "Remote process error"}
"""ncclResult_t (nccl.h); 0 is success, 7 means that it is still under way."""
NO_ERRORS = (0, 7)

_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
"""A C int."""


class _Status(msgspec.Struct, frozen=True):
    init_state: _Whole = 0
    async_error: _Whole = 0
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct, frozen=True):
    rank: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    host: Annotated[str, msgspec.Meta(max_length=64)] = ""
    pid: _Whole = -1
    cuda_dev: _Whole = -1
    status: _Status = _Status()
    collective_counts: dict[str, Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]] = {}


class _Communicator(msgspec.Struct, frozen=True):
    hash: Annotated[str, msgspec.Meta(max_length=18)]
    size: _Whole = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Answer(msgspec.Struct, frozen=True):
    communicators: list[_Communicator]
    nccl_version: str = ""


_decoder = msgspec.json.Decoder(_Answer)


def read_json(data: bytes) -> RasReport:
    """Raises RasError for what is no such answer."""
    try:
        answer = _decoder.decode(data)
        names = [f"0x{int(each.hash, 16):x}" for each in answer.communicators]
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise RasError(f"its JSON of {len(data)} bytes cannot be read, it ends early or is of another version: {error}") from None
    communicators = tuple(_communicator(name, each) for name, each in zip(names, answer.communicators, strict=True))
    members = {name: tuple(_process(rank) for rank in (*each.ranks, *each.missing_ranks)) for name, each in zip(names, answer.communicators, strict=True)}
    return RasReport(answer.nccl_version, communicators, members)


def _communicator(name: str, told: _Communicator) -> RasCommunicator:
    absent = tuple(AbsentRank(_process(rank), rank.status.unresponsive, rank.status.considered_dead) for rank in told.missing_ranks)
    failed = tuple(FailedRank(_process(rank), error) for rank in told.ranks if (error := _error(rank.status)))
    return RasCommunicator(name, told.size, absent, len(absent), tuple(_lags(told.ranks)), failed)


def _process(told: _Rank) -> RankProcess:
    return RankProcess(told.rank, told.host, told.pid, told.cuda_dev) if told.pid > 0 else RankProcess(told.rank)


def _error(status: _Status) -> str:
    code = status.init_state if status.init_state not in NO_ERRORS else status.async_error
    return "" if code in NO_ERRORS else ERRORS.get(code, f"error {code}")


def _lags(ranks: Sequence[_Rank]) -> Iterator[OperationLag]:
    if all(rank.collective_counts == ranks[0].collective_counts for rank in ranks):
        return
    for operation in dict.fromkeys(operation for rank in ranks for operation in rank.collective_counts):
        counts = [(rank, rank.collective_counts.get(operation, 0)) for rank in ranks]
        newest = max(count for _, count in counts)
        behind = tuple(LaggingRank(_process(rank), count) for rank, count in counts if count < newest)
        if behind:
            yield OperationLag(operation, newest, behind, len(behind))
