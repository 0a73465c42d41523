"""A process's RAS thread on a loopback port, which speaks as NCCL's does (src/ras/client_support.cc), and reports in the forms that it writes."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

HOST = "172.16.64.210"
HEAD = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.003s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def text_report(groups: Sequence[str], errors: str = "", warnings: str = "") -> bytes:
    """`groups`: rows of the summary."""
    return (HEAD + "".join(f"{row}\n" for row in groups) + f"\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}").encode()


def process_of(rank: int) -> dict[str, Any]:
    return {"rank": rank, "host": HOST, "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank}


def member(rank: int, counts: Mapping[str, int], *, async_error: int = 0, init_state: int = 0) -> dict[str, Any]:
    status = {"init_state": init_state, "async_error": async_error, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    every = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 0}
    return {**process_of(rank), "status": status, "collective_counts": {**every, **counts}}


def absent(rank: int, *, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    return {**process_of(rank), "status": {"unresponsive": unresponsive, "considered_dead": dead}}


def communicator(name: str, ranks: Sequence[dict[str, Any]], missing: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    count = {"size": len(ranks) + len(missing), "ranks_count": len(ranks), "missing_ranks_count": len(missing)}
    return {"hash": name, "secondary_hash": "0xb7:0xb8", **count, "ranks": list(ranks), "missing_ranks": list(missing)}


def json_report(*communicators: dict[str, Any]) -> bytes:
    head = {"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2025-12-19 13:06:53"}
    told = {**head, "communicators_count": len(communicators), "communicators": list(communicators), "ras": {"collection_time_sec": 0.003, "timeouts_count": 0}}
    return json.dumps(told, indent=1).encode()


class FakeRas:
    """Answers until it is closed. `commands` are those of all connections, in upper case."""

    def __init__(self, report: bytes = b"", *, text: bytes = b"", greeting: bytes = b"SERVER PROTOCOL 2\n") -> None:
        """`report` in JSON, or b"" for an NCCL that knows no JSON; `text`: its report in text."""
        self.report, self.text, self.greeting = report, text, greeting
        self.instead: Callable[[socket.socket], None] | None = None
        """What happens in place of a report."""
        self.silent = 0
        """So many of the next connections are those of a process that is stopped."""
        self.commands: list[str] = []
        self._held: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for each in self._held:
            each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                if self.silent:
                    self.silent -= 1
                    self._held.append(connection)
                    continue
                with connection, contextlib.suppress(OSError):
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        in_json = False
        for line in connection.makefile("rb"):
            command = line.decode().strip().upper()
            self.commands.append(command)
            if command.startswith("CLIENT PROTOCOL "):
                connection.sendall(self.greeting)
            elif command == "SET FORMAT JSON" and self.report:
                in_json = True
                connection.sendall(b"OK\n")
            elif command == "VERBOSE STATUS":
                if self.instead is not None:
                    self.instead(connection)
                else:
                    connection.sendall(self.report if in_json else self.text)
                return
            else:
                connection.sendall(b"ERROR: Unknown command " + line)
