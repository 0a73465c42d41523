"""Lines as NCCL Inspector writes them (plugins/profiler/inspector/inspector_json.cc of NCCL 2.31, format v4.0)."""

import json
from typing import Any


def inspector_line(
    *, rank: int = 0, ranks: int = 4, operation: str = "AllReduce", number: int = 1, size: int = 1 << 20, us: int = 100, bus_gbs: float | str = 100.0,
    communicator: str = "0x9e", group: str = "unknown", pid: int = 100, peer: int | None = None,
) -> str:  # fmt: skip
    """`peer`: of a message from one to one."""
    kind, name = ("coll", "coll") if peer is None else ("p2p", "p2p")
    told: dict[str, Any] = {name: operation, f"{kind}_sn": number, f"{kind}_msg_size_bytes": size, f"{kind}_exec_time_us": us, f"{kind}_timing_source": "kernel_gpu"}
    told |= {f"{kind}_algobw_gbs": 60.0, f"{kind}_busbw_gbs": bus_gbs} | ({} if peer is None else {"p2p_peer": peer})
    header = {"id": communicator, "comm_name": group, "rank": rank, "n_ranks": ranks, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": 1748030377748202, "hostname": "h", "pid": pid,
    }  # fmt: skip
    return json.dumps({"header": header, "metadata": metadata, f"{kind}_perf": told}, separators=(",", ":")) + "\n"
