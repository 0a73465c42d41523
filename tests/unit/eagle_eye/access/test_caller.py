"""What a connection proves: the user at its other end, and whether a proxy speaks for somebody else."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.access import Authorization, Caller, Role, Tokens
from eagle_eye.access.caller import local_caller, speaks_for_itself, this_process
from eagle_eye.access.peer_credentials import SocketAddress, user_of
from eagle_eye.clock import FakeClock
from eagle_eye.errors import NotAuthenticated
from fakes.other_user import USER, as_other_user, needs_root

HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
CLIENT = SocketAddress("127.0.0.1", 40_122)
PORT = 7467


def row(local: str = "0100007F:9CBA", remote: str = "0100007F:1D2B", *, user: int = 1000, inode: int = 4711) -> str:
    """A line of /proc/net/tcp, as the kernel writes it on a little-endian machine."""
    return f"   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 {user:5d}        0 {inode} 1 0000000000000000 20 4 30 10 -1\n"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "tcp").write_text(HEADING)
    return tmp_path


def write(net: Path, *rows: str, table: str = "tcp") -> None:
    (net / table).write_text(HEADING + "".join(rows))


# --- the table -------------------------------------------------------------------------------------------------------


def test_the_owner_of_the_other_end_is_found(net: Path) -> None:
    ours = row("0100007F:1D2B", "0100007F:9CBA", user=0)  # the server's own end of the same connection
    write(net, ours, row(), row("0100007F:9CBB", user=1001))
    assert user_of(CLIENT, PORT, net=net) == 1000
    assert user_of(SocketAddress("127.0.0.1", 1), PORT, net=net) is None


def test_a_connection_that_its_process_has_closed_is_nobodys_and_not_roots(net: Path) -> None:
    """The kernel shows 0 as the owner of a socket without a process: who asks and hangs up would be root."""
    write(net, row(user=0, inode=0))
    assert user_of(CLIENT, PORT, net=net) is None


def test_the_same_port_towards_another_server_is_another_connection(net: Path) -> None:
    write(net, row(remote="0100007F:0050", user=0), row())
    assert user_of(CLIENT, PORT, net=net) == 1000


def test_two_owners_of_one_address_are_none(net: Path) -> None:
    write(net, row(), row(remote="0200007F:1D2B", user=0))
    assert user_of(CLIENT, PORT, net=net) is None


def test_ipv4_within_ipv6_is_found_in_either_table(net: Path) -> None:
    mapped = "0000000000000000FFFF00000100007F"
    write(net, row(f"{mapped}:9CBA", f"{mapped}:1D2B"), table="tcp6")
    assert user_of(CLIENT, PORT, net=net) == 1000
    assert user_of(SocketAddress("::ffff:127.0.0.1", 40_122), PORT, net=net) == 1000
    write(net, row("00000000000000000000000001000000:9CBA", "00000000000000000000000001000000:1D2B", user=5), table="tcp6")
    assert user_of(SocketAddress("::1", 40_122), PORT, net=net) == 5


def test_without_a_table_nobody_is_known(tmp_path: Path) -> None:
    assert user_of(CLIENT, PORT, net=tmp_path) is None


# --- real connections ------------------------------------------------------------------------------------------------


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_twin_our_own_process_is_ourselves(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        caller = local_caller(*client.getsockname(), port)
        assert (caller.user, caller.owns_server) == (os.geteuid(), True)


def test_who_has_hung_up_is_nobody(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        ours, _ = listening.accept()
        address = SocketAddress(*client.getsockname())
    with ours:
        assert (user_of(address, port), user_of(address, port, net=Path("/proc/thread-self/net"))) == (None, None)


def test_the_kernel_s_answer_and_its_table_agree_on_ipv6_too() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            with socket.create_connection((host, port)) as client:
                address = SocketAddress(*client.getsockname()[:2])
                assert user_of(address, port) == user_of(address, port, net=Path("/proc/thread-self/net")) == os.geteuid()


@needs_root
def test_another_user_is_that_user(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    told = as_other_user(
        "from eagle_eye.access.caller import local_caller",
        f"own = socket.create_connection(('127.0.0.1', {port})); print(local_caller(*own.getsockname(), {port}).user)",
    )
    assert told.stdout == f"{USER}\n", told.stderr


# --- proxies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "x-forwarded-host", "X-Forwarded-Proto", "X-Forwarded", "True-Client-IP", "CF-Connecting-IP", "X-Envoy-External-Address"])
def test_who_speaks_for_somebody_else_is_not_local(header: str) -> None:
    assert not speaks_for_itself("127.0.0.1", [header])


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("", False)])
def test_only_loopback_is_local(host: str, local: bool) -> None:
    assert speaks_for_itself(host, ["user-agent", "authorization"]) is local


# --- who may without tokens ------------------------------------------------------------------------------------------


@pytest.fixture
def authorization(tmp_path: Path) -> Authorization:
    return Authorization(Tokens(tmp_path / "none.toml", FakeClock()), trust_claims=True)


@pytest.mark.parametrize("caller", [this_process(), Caller(local=True, user=0)])
def test_twin_root_and_who_runs_the_server_decide(authorization: Authorization, caller: Caller) -> None:
    assert authorization.admit(Role.OPERATOR, "approve", claimed="ada", caller=caller).role is Role.ADMIN


@pytest.mark.parametrize("needed", [Role.VIEWER, Role.OPERATOR])
@pytest.mark.parametrize(("caller", "words"), [
    (Caller(local=True, user=4_000_000), "asked by the user 4000000"),
    (Caller(local=True), "a user who cannot be told"),
    (Caller(), "through a proxy, or from another machine"),
])  # fmt: skip
def test_nobody_else_may_without_a_token_and_is_told_what_to_do(
    authorization: Authorization, caplog: pytest.LogCaptureFixture, needed: Role, caller: Caller, words: str
) -> None:
    for _ in range(3):
        with pytest.raises(NotAuthenticated, match=rf"{words}.*eagle-eye token add NAME --role {needed}"):
            authorization.admit(needed, "it", claimed="ada", caller=caller)
    assert len(caplog.records) == 1, "said once"


def test_twin_where_the_configuration_trusts_everybody_everybody_may(tmp_path: Path) -> None:
    authorization = Authorization(Tokens(tmp_path / "none.toml", FakeClock()), trust_claims=False, everybody=True)
    assert authorization.admit(Role.OPERATOR, "approve", claimed="ada", caller=Caller()).name == "ada"
