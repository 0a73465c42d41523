"""What the kernel's table of connections says of a host that is gone."""

import asyncio
import socket
from pathlib import Path

import pytest

from eagle_eye.ports import free_port
from remediation.launcher.retransmission import host_of, refused, unacknowledged

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
HOST = "10.0.0.7"


def table(folder: Path, *, remote: str = "0700000A", state: str = "01", timer: str = "01", attempts: int = 4) -> tuple[Path]:
    path = folder / "tcp"
    path.write_text(f"{HEAD}   0: 0100000A:1F90 {remote}:A2C4 {state} 00000400:00000000 {timer}:00000014 {attempts:08X}     0        0 4711 2\n")
    return (path,)


def test_data_that_is_sent_again_and_again_is_a_proof(tmp_path: Path) -> None:
    assert unacknowledged(HOST, table(tmp_path))
    mapped = table(tmp_path, remote="0000000000000000FFFF00000700000A")
    assert unacknowledged(HOST, mapped), "of an IPv4 host on a socket of IPv6"


@pytest.mark.parametrize("twin", [
    {"attempts": 2}, {"timer": "02"}, {"timer": "00", "attempts": 0}, {"state": "06"}, {"remote": "0800000A"},
], ids=["one packet was lost", "only asked whether it is there", "all is acknowledged", "the connection is closed", "another host"])  # fmt: skip
def test_twin_a_host_that_acknowledges_is_there(tmp_path: Path, twin: dict[str, object]) -> None:
    assert not unacknowledged(HOST, table(tmp_path, **twin))  # type: ignore[arg-type]


def test_what_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    assert not unacknowledged(HOST, (tmp_path / "missing",))
    (tmp_path / "tcp").write_text(HEAD + "torn\n")
    assert not unacknowledged(HOST, (tmp_path / "tcp",))
    assert not unacknowledged("no such host", table(tmp_path))


def test_a_port_at_which_nobody_listens_refuses_and_a_busy_process_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        assert not asyncio.run(refused(f"127.0.0.1:{busy.getsockname()[1]}"))
    assert asyncio.run(refused(f"127.0.0.1:{free_port()}"))
    assert not asyncio.run(refused("no-such-host.invalid:1"))


def test_the_host_of_an_address() -> None:
    assert (host_of("10.0.0.7:29400"), host_of("[fe80::1]:29400")) == ("10.0.0.7", "fe80::1")
