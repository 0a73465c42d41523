"""A port that takes no connection is told from one that does, and from one of which that is not known."""

import asyncio
import socket

from eagle_eye.ports import free_port
from eagle_eye.rpc.closed_ports import ClosedPorts


def looks(*addresses: str) -> list[bool]:
    """One after the other, of one client."""

    async def look() -> list[bool]:
        ports = ClosedPorts()
        return [await ports.still_closed(address) for address in addresses]

    return asyncio.run(look())


def test_fault_a_port_that_is_closed_at_two_looks_is_still_closed() -> None:
    address = f"127.0.0.1:{free_port()}"
    assert looks(address, address, address) == [False, True, True]


def test_each_address_is_known_by_itself() -> None:
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    assert looks(first, second, first) == [False, False, True]


def test_twin_a_port_that_opened_is_not_closed_and_begins_anew() -> None:
    async def look() -> list[bool]:
        ports, seen = ClosedPorts(), []
        port = free_port()
        address = f"127.0.0.1:{port}"
        seen += [await ports.still_closed(address), await ports.still_closed(address)]
        with socket.create_server(("127.0.0.1", port)):
            seen.append(await ports.still_closed(address))
        seen.append(await ports.still_closed(address))
        return seen

    assert asyncio.run(look()) == [False, True, False, False]


def test_twin_what_is_no_tcp_address_is_left_to_grpc() -> None:
    assert looks(*["unix:/run/eagle-eye.sock", "leader:port", "leader:٣", ""] * 2) == [False] * 8


def test_a_port_that_cannot_be_is_closed_and_raises_nothing() -> None:
    assert looks(*["127.0.0.1:70000"] * 2) == [False, True]
