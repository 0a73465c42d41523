"""Rings of torch's flight recorder as its server answers them (torch 2.13, dump version 2.10)."""

import json
from typing import Any


def ring_entry(number: int, operation: str, sent: list[list[int]], received: list[list[int]] | None = None, *, backend: str = "gloo", group: str = "0", **fields: Any) -> dict[str, Any]:
    """One collective of float32 tensors. `fields`: replace those of the entry."""
    outputs = sent if received is None else received
    nccl = backend == "nccl"
    return {
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "record_id": number - 1, "pg_id": 0, "process_group": [group, "default_pg"], "profiling_name": f"{backend}:{operation}",
        "input_sizes": sent, "input_dtypes": ["Float"] * len(sent), "output_sizes": outputs, "output_dtypes": ["Float"] * len(outputs), "is_p2p": False,
        "retired": True, "state": "completed" if nccl else "scheduled", "time_created_ns": 1795861051187671027, "time_discovered_started_ns": 1795861051187700000 * nccl,
        "time_discovered_completed_ns": 1795861051187900000 * nccl, "timeout_ms": 1800000, "thread_id": "139990396619648", "thread_name": "python", **fields,
    }  # fmt: skip


def ring_answer(*entries: dict[str, Any]) -> bytes:
    """Without entries as of a ring that is empty: torch leaves the key out then."""
    status = {"0": {"last_completed_collective": "6", "last_enqueued_collective": "6", "last_started_collective": "-1"}}
    whole = {"comm_lib_version": "", "nccl_comm_state": {}, "pg_config": {}, "pg_status": status, "version": "2.10"}
    return json.dumps({**whole, "entries": list(entries)} if entries else whole).encode()
