"""Ports that stay free until somebody listens on them."""

import socket
from pathlib import Path

import pytest

from eagle_eye import ports


def test_a_free_port_is_none_that_the_kernel_gives_to_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = ports.free_port()
        assert port < first
        with socket.create_server(("127.0.0.1", port)):
            pass


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
