"""Dumps of torch's flight recorder, of a job that was never run: each rank's calls in their order, numbered as torch numbers them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eagle_eye.activity.flight_dump import FlightDump, dump_of

WORLD = "0"


def call(operation: str = "all_reduce", sent: int = 8, received: int | None = None, kind: str = "Float", group: str = WORLD, *, over: bool = True, **more: Any) -> dict[str, Any]:
    """One entry; `skip`: numbers that its group counts before it."""
    backend, _, name = operation.rpartition(":")
    return {
        "process_group": (group, f"group {group}"), "profiling_name": f"{backend or 'nccl'}:{name}", "input_sizes": [[sent]], "input_dtypes": [kind],
        "output_sizes": [[sent if received is None else received]], "output_dtypes": [kind], "state": "completed" if over else "started", "retired": over,
        "is_p2p": name.startswith(("send ", "recv ")), "time_created_ns": 1_700_000_000_000_000_000, **more,
    }  # fmt: skip


def stuck(operation: str = "all_reduce", sent: int = 8, **more: Any) -> dict[str, Any]:
    """One that does not end."""
    return call(operation, sent, over=False, **more)


def numbered(calls: Sequence[dict[str, Any]], lost: int = 0) -> list[dict[str, Any]]:
    """`lost`: how many of the first ones have left the ring."""
    counts: Counter[tuple[str, str]] = Counter()
    out = []
    for place, each in enumerate(calls):
        key = (each["process_group"][0], each["profiling_name"].partition(":")[0])
        counts[key] += 0 if each["is_p2p"] else each.get("counts", 1)
        out.append({**each, "record_id": place, "collective_seq_id": counts[key], "p2p_seq_id": 0})
    return out[lost:]


def record(calls: Sequence[dict[str, Any]], groups: Mapping[str, Sequence[int]], lost: int = 0) -> dict[str, Any]:
    """As torch writes it, of a rank that is in these groups."""
    configured = {name: {"name": name, "desc": f"group {name}", "ranks": str(list(ranks))} for name, ranks in groups.items()}
    return {"version": "2.10", "pg_config": configured, "pg_status": {}, "entries": numbered(calls, lost)}


def dumps(ranks: Sequence[Sequence[dict[str, Any]] | None], groups: Mapping[str, Sequence[int]] | None = None) -> list[FlightDump]:
    """Of each rank its calls, None for one without a dump; each knows the groups that it is in."""
    of = groups or {WORLD: range(len(ranks))}
    return [dump_of(record(calls, {name: members for name, members in of.items() if rank in members}), rank) for rank, calls in enumerate(ranks) if calls is not None]
