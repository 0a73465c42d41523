"""Open files of a process: files, devices, pipes, and sockets with their other end."""

import os
import socket
from pathlib import Path

from eagle_eye.activity.open_files import MOST, SocketTable, open_file, open_files, parse_socket

ME = os.getpid()


def test_a_file_is_told_with_its_use_and_position(tmp_path: Path) -> None:
    with (tmp_path / "a:b").open("wb", buffering=0) as file:
        file.write(b"1234")
        found = {each.descriptor: each for each in open_files(ME)}[file.fileno()]
    assert (found.kind, found.target, found.access, found.position) == ("file", str(tmp_path / "a:b"), "writes", 4)


def test_a_socket_is_told_with_its_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        mine, theirs = (f"127.0.0.1:{port}" for port in (client.getsockname()[1], server.getsockname()[1]))
        table = SocketTable(ME)
        connected, listens = open_file(ME, client.fileno(), table), open_file(ME, server.fileno(), table)
    assert connected is not None
    assert str(connected) == f"socket tcp {mine} → {theirs}"
    assert listens is not None
    assert str(listens) == f"socket tcp {theirs}, listens"


def test_addresses_of_ipv6_and_of_ipv4_within_it() -> None:
    def ends(local: str, remote: str) -> str:
        ((_, found),) = parse_socket("tcp", ["0:", local, remote, "01", "0", "0", "0", "0", "0", "42"])
        return f"{found.local} {found.remote}"

    assert ends("00000000000000000000000001000000:1F90", "0000000000000000FFFF00000100007F:0016") == "[::1]:8080 127.0.0.1:22"


def test_a_torn_line_of_the_kernel_is_left_out() -> None:
    assert list(parse_socket("tcp", ["0:", "0100007F:7530"])) == []
    assert list(parse_socket("tcp", ["0:", "01:7530", "zz:1", "01", "", "", "", "", "", "x"])) == []


def test_of_a_process_that_is_gone_there_are_none() -> None:
    assert open_files(1 << 22) == ()
    assert open_file(ME, MOST * 100, SocketTable(ME)) is None
