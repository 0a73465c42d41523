"""One path from this launcher to another, tested: connections, and bytes that the other launcher sends back. Some seconds and half a MiB at most."""

import asyncio
import contextlib
import ipaddress
import math
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.rpc.control_messages import Body

from .control_network import Client
from .retransmission import host_of

RESOLVE_S, CONNECT_S, ECHO_S = 2.0, 2.0, 2.0
"""How long the look-up of a name may take, a connection, and a session with its echoes."""
CONNECTIONS = 3
AGAIN_S = 0.9
"""A connection that takes so long was asked for again: the kernel sends the first packet anew after a second."""
BULK = 256 * 1024
"""Bytes that are sent and come back."""
Connect = Callable[[str, int, float], Awaitable[None]]
"""(host, port, time-out): connect, and close. Raises OSError, TimeoutError."""
MakeClient = Callable[[str, float], Client]
"""(address, seconds for the session to begin)."""


class NetworkPath(NamedTuple):
    """What was found of one path."""

    outcome: str
    """answered; refused: its host answers, and nobody listens there; silent: it takes connections, and the launcher does not answer; lost: nothing comes back;
    unresolved: nobody knows the address of its name, which says nothing of the way."""
    round_trip_s: float = math.nan
    """Of the fastest connection."""
    sent_again: int = 0
    """Connections that needed a second packet, or did not come about, beside one that did."""
    bytes_per_s: float = math.nan


async def echo(body: Body) -> Body:
    """What a launcher sends back to one that tests the way here; no more than a test asks for."""
    return {"payload": str(body.get("payload", ""))[:BULK]}


class HostLookup:
    """The addresses of a name, looked up in a thread of its own: what looks names up may hang, and then holds nobody else, nor keeps the launcher from ending."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()

    async def addresses(self, host: str) -> tuple[str, ...]:
        """() if nobody knows it, or not within RESOLVE_S; a name that is still being looked up since before is not asked for again."""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return (host,)
        if host in self._under_way:
            return ()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[str, ...]] = loop.create_future()

        def look() -> None:
            found = _addresses(host)
            self._under_way.discard(host)
            with contextlib.suppress(RuntimeError):  # the launcher has ended meanwhile
                loop.call_soon_threadsafe(_answered, answer, found)

        self._under_way.add(host)
        try:
            threading.Thread(target=look, name=f"address of {host}", daemon=True).start()
        except RuntimeError:  # the process may have no further thread
            self._under_way.discard(host)
            return ()
        try:
            return await asyncio.wait_for(answer, RESOLVE_S)
        except TimeoutError:
            return ()


def _addresses(host: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))
    except (OSError, ValueError):  # a name that none can be is a UnicodeError
        return ()


def _answered(answer: asyncio.Future[tuple[str, ...]], found: tuple[str, ...]) -> None:
    if not answer.done():
        answer.set_result(found)


async def tested(address: str, lookup: HostLookup, connect: Connect, make_client: MakeClient, clock: Clock) -> NetworkPath:
    """The way to a launcher."""
    hosts = await lookup.addresses(host_of(address))
    if not hosts:
        return NetworkPath("unresolved")
    tries = await asyncio.gather(*(_connection(hosts, address.rpartition(":")[2], connect, clock) for _ in range(CONNECTIONS)))
    times = [taken for taken in tries if isinstance(taken, float)]
    if not times:
        return NetworkPath("refused" if any(isinstance(error, ConnectionRefusedError) for error in tries) else "lost")
    path = NetworkPath("silent", min(times), sum(not isinstance(taken, float) or taken >= AGAIN_S for taken in tries))
    try:
        async with asyncio.timeout(ECHO_S):
            rate = await _rate(make_client(address, ECHO_S), clock)
    except (EagleEyeError, TimeoutError):
        return path
    return path._replace(outcome="answered", bytes_per_s=rate)


async def _connection(hosts: Sequence[str], port: str, connect: Connect, clock: Clock) -> float | OSError:
    """Seconds to the first of these addresses that takes it, or why it did not come about."""
    began = clock.monotonic()
    failed: OSError = OSError("no address")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            for host in hosts:
                try:
                    await connect(host, int(port), CONNECT_S)
                    return clock.monotonic() - began
                except (OSError, ValueError) as error:  # TimeoutError is an OSError
                    refused = isinstance(failed, ConnectionRefusedError)
                    failed = failed if refused else error if isinstance(error, OSError) else OSError(str(error))
    return failed


async def _rate(client: Client, clock: Clock) -> float:
    """Bytes per second there and back, less what an echo without bytes takes. Raises EagleEyeError."""
    await client.start()
    try:
        await client.request("echo", {}, ECHO_S)
        began = clock.monotonic()
        await client.request("echo", {}, ECHO_S)
        empty_s = clock.monotonic() - began
        await client.request("echo", {"payload": "x" * BULK}, ECHO_S)
        return 2 * BULK / max(clock.monotonic() - began - 2 * empty_s, 1e-4)
    finally:
        await client.stop()


async def connect_to(host: str, port: int, timeout: float) -> None:
    """See Connect."""
    async with asyncio.timeout(timeout):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()


def attributes_of(paths: Mapping[str, NetworkPath]) -> dict[str, str]:
    """As an event tells them: the peers of each outcome with spaces between, and figures as `peer=number`."""
    told = {outcome: " ".join(peer for peer, path in paths.items() if path.outcome == outcome) for outcome in ("answered", "refused", "silent", "lost", "unresolved")}
    figures = {
        "round_trip_ms": {peer: f"{1e3 * path.round_trip_s:.2f}" for peer, path in paths.items() if math.isfinite(path.round_trip_s)},
        "mb_per_s": {peer: f"{path.bytes_per_s / 1e6:.1f}" for peer, path in paths.items() if math.isfinite(path.bytes_per_s)},
        "sent_again": {peer: str(path.sent_again) for peer, path in paths.items() if path.sent_again},
    }
    return told | {name: " ".join(f"{peer}={number}" for peer, number in numbers.items()) for name, numbers in figures.items()}


def words_of_path(path: NetworkPath) -> str:
    """For the event's message."""
    if path.outcome == "answered":
        return f"answers, {1e3 * path.round_trip_s:.2f} ms, {path.bytes_per_s / 1e6:.0f} MB/s"
    return {
        "refused": "its host answers, no launcher listens there",
        "silent": f"takes connections, and does not answer within {ECHO_S:g} s",
        "unresolved": f"the address of its name was not to be had within {RESOLVE_S:g} s",
        "lost": f"no answer to {CONNECTIONS} connections within {CONNECT_S:g} s",
    }[path.outcome]
