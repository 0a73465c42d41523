"""What torch's recorders of a worker are asked, and how their answers are put together."""

import http.server
import json
import os
import shutil
import socket
import socketserver
import subprocess
import tempfile
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


def says(told: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + told)


def boasts(connection: socket.socket) -> None:
    """More than any memory has, and less than it says."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n{")


def boasts_of_a_chunk(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffff\r\n{")


@pytest.mark.parametrize("speak", [boasts, boasts_of_a_chunk])
def test_whoever_boasts_of_a_long_answer_is_given_no_memory_for_it(tmp_path: Path, speak: Callable[[socket.socket], None]) -> None:
    with speaker(tmp_path / "0.fr", speak) as path:
        assert live_flight_recorder.answers(path) in (None, [b"{", b"{"])
        assert live_flight_recorder.dump(path) is None


def test_memory_that_is_not_to_be_had_is_an_answer_that_was_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    with worker(tmp_path / "0.fr", {"fr_trace_json": recorded()}) as path:
        assert live_flight_recorder.answers(path) == [recorded()]
        monkeypatch.setattr(live_flight_recorder._BoundedSocket, "readinto", no_memory)
        assert live_flight_recorder.answers(path) is None
        assert live_flight_recorder.dump(path) is None


def test_twin_an_answer_that_says_its_length_and_one_in_chunks_are_read_whole(tmp_path: Path) -> None:
    body = recorded(entry("gloo", 3, 1, over=True))
    chunks = b"5\r\n" + body[:5] + b"\r\n%x\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n"
    for number, told in enumerate((b"Content-Length: %d\r\n\r\n" % len(body) + body, b"Transfer-Encoding: chunked\r\n\r\n" + chunks)):
        with speaker(tmp_path / f"{number}.fr", says(told)) as path:
            assert live_flight_recorder.answers(path, largest=len(body) + 1000) == [body, body]


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


# --- who may ask

AGENT = ("setpriv", "--inh-caps=-all", "--bounding-set=-all,+dac_read_search,+sys_ptrace,+syslog")
"""Root as the agent's unit and its pod have it."""
NEIGHBOUR = ("setpriv", "--reuid=1002", "--regid=1001", "--clear-groups")
"""Another user, of the owner's group."""
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv of util-linux")
def test_an_agent_without_power_over_all_files_may_ask_the_worker_of_another_user_and_no_other_user_may() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        Path(folder).chmod(0o755)
        path = f"{folder}/0.sock.fr"
        server.bind(path)
        server.listen()
        Path(path).chmod(0o600)
        os.chown(path, 1001, 1001)

        def connects(who: tuple[str, ...]) -> bool:
            return subprocess.run([*who, "/usr/bin/env", "python3", "-c", CONNECT, path], capture_output=True, check=False, timeout=30).returncode == 0

        assert not connects(AGENT)
        live_flight_recorder._admit_root(path)
        assert connects(AGENT)
        assert not connects(NEIGHBOUR)


def test_where_there_are_no_access_lists_the_worker_serves_all_the_same(tmp_path: Path) -> None:
    live_flight_recorder._admit_root(str(tmp_path / "none"))
