"""What torch's recorders of a worker are asked, and how their answers are put together."""

import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.activity.last_collective import LastCollective, last_collective
from eagle_eye.training import live_flight_recorder


def entry(backend: str, number: int, created: int, *, over: bool) -> dict[str, Any]:
    return {"collective_seq_id": number, "process_group": ["0", "default_pg"], "profiling_name": f"{backend}:all_reduce", "retired": over, "time_created_ns": created}


def recorded(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"version": "2.10", "entries": list(entries)}).encode()


@contextmanager
def worker(path: Path, answers: Mapping[str, bytes]) -> Iterator[str]:
    """As torch's server: a handler that it was built without is not found."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = answers.get(self.path.removeprefix("/handler/"))
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(answer or b"Handler not found")

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return "worker"

    with socketserver.UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield str(path)
        finally:
            server.shutdown()
            thread.join()


def test_of_a_job_on_gpus_the_collectives_of_nccl_are_found(tmp_path: Path) -> None:
    """The recorder of all else is there, too, and empty."""
    answers = {"dump_nccl_trace_json": recorded(entry("nccl", 7, 1, over=True), entry("nccl", 8, 2, over=False)), "fr_trace_json": recorded()}
    with worker(tmp_path / "0.fr", answers) as path:
        assert last_collective(path) == LastCollective("0 default_pg nccl", 8, "all_reduce", pending=True, calls="7 all_reduce -1 -1; 8 all_reduce -1 -1")


def test_the_newest_of_two_backends_is_the_newest_of_all(tmp_path: Path) -> None:
    """They count by themselves, also in one group."""
    answers = {"dump_nccl_trace_json": recorded(entry("nccl", 7, 5, over=True)), "fr_trace_json": recorded(entry("gloo", 90, 4, over=True), entry("gloo", 91, 6, over=True))}
    with worker(tmp_path / "0.fr", answers) as path:
        record = live_flight_recorder.dump(path)
        assert record is not None
        assert [each["collective_seq_id"] for each in record["entries"]] == [90, 7, 91]
        assert last_collective(path) == LastCollective("0 default_pg", 91, "all_reduce", pending=False, calls="90 all_reduce -1 -1; 91 all_reduce -1 -1")


def test_a_torch_without_gpus_has_no_recorder_of_nccl(tmp_path: Path) -> None:
    with worker(tmp_path / "0.fr", {"fr_trace_json": recorded(entry("gloo", 3, 1, over=False))}) as path:
        assert last_collective(path) == LastCollective("0 default_pg", 3, "all_reduce", pending=True, calls="3 all_reduce -1 -1")


@contextmanager
def speaker(path: Path, speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """Whoever has a worker's name, and says what it likes until it is hung up on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(65536)
                    speak(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield str(path)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" " * 65536)


def slow_header(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"x")
        threading.Event().wait(0.01)


def slow_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" ")
        threading.Event().wait(0.01)


@pytest.mark.parametrize("speak", [endless, slow_header, slow_body])
def test_whoever_answers_for_ever_holds_nobody_and_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speak: Callable[[socket.socket], None]) -> None:
    monkeypatch.setattr(live_flight_recorder, "LARGEST", 1 << 20)
    with speaker(tmp_path / "0.fr", speak) as path:
        assert live_flight_recorder.dump(path, 0.1) is None


DEEP = b'{"entries": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
STRANGE = [DEEP, *(b'{"entries": [' + json.dumps(entry("gloo", 1, 1, over=False)).encode().replace(b": 1,", b": " + number + b",", 1) + b"]}" for number in (b"Infinity", b"1e400", b"9" * 400))]


@pytest.mark.parametrize("answer", STRANGE)
def test_numbers_and_depths_that_cannot_be_tell_nothing(tmp_path: Path, answer: bytes) -> None:
    late = answer.replace(b"time_created_ns", b"collective", 1).replace(b"collective_seq_id", b"time_created_ns", 1)
    with worker(tmp_path / "0.fr", {"fr_trace_json": answer, "dump_nccl_trace_json": late}) as path:
        assert last_collective(path) is None


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'{"entries": 3}', b'{"entries": [1, {}]}', b'{"entries": [{"time_created_ns": "x"}]}'])
def test_what_is_no_record_tells_nothing(tmp_path: Path, answer: bytes) -> None:
    with worker(tmp_path / "0.fr", {"fr_trace_json": answer, "dump_nccl_trace_json": answer}) as path:
        assert last_collective(path) is None


def test_who_serves_nothing_has_no_record(tmp_path: Path) -> None:
    with worker(tmp_path / "0.fr", {}) as path:
        assert live_flight_recorder.dump(path) is None
    assert live_flight_recorder.dump(str(tmp_path / "nowhere.fr")) is None
