"""A real NCCL beside what reads it: torch's flight recorder, how far a rank is in its groups, RAS, its log. Needs a GPU: without one it ends with 2.

    python -m benchmarks.gpu.nccl [--keep DIR] [--json]

One rank on one GPU: NCCL takes no two ranks on one. What is waited for is a kernel of several seconds before a collective in the same stream.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.kernels import spin
from benchmarks.report import Row, report
from collectors.nccl.ras_client import ask_ras, parse_ras_address
from eagle_eye.activity.flight_dump import read_dump
from eagle_eye.clock import SystemClock
from eagle_eye.ports import free_port
from eagle_eye.training import live_flight_recorder
from eagle_eye.training.group_progress import GroupProgressReader

NO_GPU = 2
COLLECTIVES = 50
SLEEP_S = 4.0
NANOSECONDS = 1e9


def progress_of(reader: GroupProgressReader, name: str) -> dict[str, int]:
    """NCCL's numbers of the group with this description."""
    found = reader.read() or {"groups": []}
    return next((group["backends"].get("nccl", {}) for group in found["groups"] if group["description"] == name), {})


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """False if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def groups(reader: GroupProgressReader) -> Iterator[Row]:
    """Numbers of a group while it works, stands and is done."""
    tensor = torch.ones(1 << 20, device="cuda")
    for _ in range(COLLECTIVES):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    wait_for(lambda: progress_of(reader, "default_pg").get("over", 0) >= COLLECTIVES)
    done = progress_of(reader, "default_pg")
    yield Row("collectives of a group, begun and over", f"{done.get('begun')} and {done.get('over')}", f"{COLLECTIVES} each", (done.get("begun"), done.get("over")) == (COLLECTIVES, COLLECTIVES))
    spin(SLEEP_S)
    began = time.monotonic()
    dist.all_reduce(tensor)
    handed = time.monotonic() - began
    seen = wait_for(lambda: progress_of(reader, "default_pg").get("pending_ns", 0) > NANOSECONDS)
    standing = progress_of(reader, "default_pg")
    took = time.perf_counter()
    reader.read()
    took = time.perf_counter() - took
    torch.cuda.synchronize()
    spun = time.monotonic() - began
    over = wait_for(lambda: progress_of(reader, "default_pg").get("over", 0) == COLLECTIVES + 1)
    yield Row(
        f"one that stands behind a kernel of {spun:.1f} s (handed over in {1e3 * handed:.1f} ms)",
        f"{standing.get('begun')} begun, {standing.get('over')} over, pending for {standing.get('pending_ns', 0) / NANOSECONDS:.1f} s; over afterwards: {over}",
        "seen, and its end", seen and over,
    )  # fmt: skip
    yield Row("a look at the groups beside it", f"{1e6 * took:.0f} µs", "≤ 1 ms", took <= 1e-3)


def recorder(folder: Path, keep: Path | None) -> Iterator[Row]:
    """The ring by torch's own server, and as a dump file."""
    path = str(folder / "fr")
    serving = live_flight_recorder.serve(path)
    record: dict[str, Any] = (live_flight_recorder.dump(path, 5.0) if serving else None) or {}
    entries = record.get("entries", [])
    nccl = [entry for entry in entries if str(entry.get("profiling_name", "")).startswith("nccl:")]
    yield Row("entries of the ring by torch's server", f"{len(nccl)} of NCCL of {len(entries)}, torch's format {record.get('version')}", f"≥ {COLLECTIVES + 1}", len(nccl) > COLLECTIVES)
    file = folder / "dump_0"
    file.write_bytes(torch._C._distributed_c10d._dump_nccl_trace())
    dump = read_dump(file)
    yield Row("the same in a dump file", f"{dump}"[:120], "read", dump is not None)
    if keep:
        (keep / "flight_recorder.json").write_text(json.dumps(record)[:2_000_000])
        (keep / "dump_0").write_bytes(file.read_bytes())


def ras(address: str, keep: Path | None) -> Iterator[Row]:
    """The report in both forms."""
    for as_json in (True, False):
        name = "JSON" if as_json else "text"
        try:
            said = ask_ras(parse_ras_address(address), SystemClock(), as_json=as_json)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with what a real NCCL says is the finding here
            yield Row(f"RAS in {name}", f"{type(error).__name__}: {error}"[:200], "read", False)
        else:
            yield Row(f"RAS in {name}", str(said)[:300], "read", True)
        if keep:
            (keep / f"ras.{name.lower()}").write_bytes(raw_ras(address, as_json=as_json))


def raw_ras(address: str, *, as_json: bool) -> bytes:
    """As it comes."""
    host, _, port = address.rpartition(":")
    commands = ["CLIENT PROTOCOL 2", *(["SET FORMAT json"] if as_json else []), "VERBOSE STATUS"]
    with socket.create_connection((host, int(port)), 15.0) as connected:
        for command in commands:
            connected.sendall(f"{command}\n".encode())
            time.sleep(0.2)
        pieces = []
        while data := connected.recv(65_536):
            pieces.append(data)
    return b"".join(pieces)


def main() -> int:
    """Look and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="copy there what NCCL said")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that torch can use: nothing to look at", file=sys.stderr)
        return NO_GPU
    address = f"localhost:{free_port()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
            "NCCL_RAS_ADDR": address, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / "nccl.log"), "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        }  # fmt: skip
        dist.init_process_group("nccl")
        rows = [*groups(GroupProgressReader()), *recorder(folder, options.keep), *ras(address, options.keep)]
        dist.destroy_process_group()
        if options.keep and (folder / "nccl.log").exists():
            (options.keep / "nccl.log").write_bytes((folder / "nccl.log").read_bytes())
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return report(rows, options.json, f"NCCL {version} of torch {torch.__version__} on {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    sys.exit(main())
