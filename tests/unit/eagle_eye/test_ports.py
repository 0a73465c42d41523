"""Ports that stay free until somebody listens on them."""

import socket
from pathlib import Path

import pytest

from eagle_eye import ports
from eagle_eye.errors import ConfigError


@pytest.fixture(autouse=True)
def no_named_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ports.RANGE_VARIABLE, raising=False)


def test_a_free_port_is_none_that_the_kernel_gives_to_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = ports.free_port()
        assert port < first
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_free_ports_are_of_the_range_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.RANGE_VARIABLE, "41000-41007")
    assert {ports.free_port() for _ in range(100)} <= set(range(41_000, 41_008))


def test_who_asks_for_two_ports_gets_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.RANGE_VARIABLE, "41010-41029")
    for _ in range(50):
        assert len({ports.free_port() for _ in range(4)}) == 4


@pytest.mark.parametrize("text", ["41000", "41007-41000", "0-10", "1-70000", "a-b", "1-" + "9" * 5000])
def test_a_range_that_is_none_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ports.RANGE_VARIABLE, text)
    with pytest.raises(ConfigError, match=f"{ports.RANGE_VARIABLE}=.* is no range of ports: write FIRST-LAST"):
        ports.free_port()


@pytest.mark.parametrize("text", ["1024 65535", "10000 65535"])
def test_where_the_whole_range_is_the_kernels_one_of_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "range")
    port = ports.free_port()
    assert port >= int(text.split(maxsplit=1)[0]), "of the kernel's range"
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_host_that_is_not_ours_has_no_port() -> None:
    with pytest.raises(OSError, match="assign"):
        ports.free_port("192.0.2.1")
