"""A launcher's tests of the network to other launchers and of its workers' storage, when the leader asks for them: each is an event, and nothing else follows from it here.

One test at a time, each of some seconds. Whatever goes wrong in it is logged, and concerns no worker.
"""

import asyncio
import contextlib
import logging
import math
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import UNREADABLE
from eagle_eye.rpc.control_messages import Body
from eagle_eye.tested_causes import NETWORK_TESTED, STORAGE_TESTED
from eagle_eye.types import Entity, Kind

from .event_log import EventLog
from .network_path import (
    CONNECT_S,
    ECHO_S,
    RESOLVE_S,
    Connect,
    HostLookup,
    MakeClient,
    NetworkPath,
    attributes_of,
    connect_to,
    tested,
    words_of_path,
)

log = logging.getLogger(__name__)

MOST_PEERS = 8
EVERY_S = 30.0
"""Between two tests here, whoever asks for them."""
STORAGE_S = 3.0
"""How long the mounts may take."""
LATE_S = 1.0
"""A test that took so much longer than it may was held up here: this process was stopped, or had no processor."""
PROGRAM = Path(__file__).with_name("storage_test.py")


class StorageUsed(msgspec.Struct, frozen=True):
    """What the program `storage_test.py` is asked."""

    pids: tuple[int, ...]
    """Of the workers here: the mounts of their open files are tested."""
    paths: tuple[str, ...]


class _Answer(msgspec.Struct):
    """A line of the program."""

    test: int = 0
    mounts: tuple[str, ...] | None = None
    busy: bool = False
    mount: str = ""
    stat_s: float = math.nan
    read_s: float = math.nan
    error: str = ""


class StorageProcess:
    """The process that touches the mounts, one for the life of a launcher.

    It runs before a mount can hang: to start a program waits for the file system that holds the interpreter, and all threads here wait with it. One that has ended is not started
    again, for the same reason.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asked = 0

    async def start(self) -> None:
        """Whatever goes wrong: storage is not tested then, and that is logged."""
        try:
            self._streams = await asyncio.open_connection(sock=self._spawn())
        except OSError as error:
            log.warning("the storage of the workers will not be tested: %s", error)

    def _spawn(self) -> socket.socket:
        """Our end of its input and output. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(PROGRAM)], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL, cwd="/", start_new_session=True
                )  # fmt: skip
            except OSError:
                ours.close()
                raise
        return ours

    def ready(self) -> bool:
        """Whether it can be asked; logged where it has ended."""
        if self._child is not None and (status := self._child.poll()) is not None:
            log.warning("the storage of the workers is not tested any more: the process for it has ended (status %d)", status)
            self._child = None
            self.close()
        return self._streams is not None and not self._streams[1].transport.get_write_buffer_size()  # it reads nothing any more: it hangs itself

    async def answers(self, storage: StorageUsed) -> tuple[tuple[str, ...], dict[str, _Answer]]:
        """The mounts that are used here, and what those that answer have said; no mounts while one hangs since the test before."""
        assert self._streams is not None
        reader, writer = self._streams
        self._asked += 1
        mounts: tuple[str, ...] | None = None
        answers: dict[str, _Answer] = {}
        writer.write(msgspec.json.encode({"test": self._asked, "pids": storage.pids, "paths": storage.paths}) + b"\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORAGE_S):
                while (mounts is None or len(answers) < len(mounts)) and (line := await reader.readline()):
                    with contextlib.suppress(*UNREADABLE):
                        answer = msgspec.json.decode(line, type=_Answer)
                        if answer.test != self._asked:  # it comes too late: of a mount that hung
                            continue
                        if answer.busy:
                            log.info("storage is not tested again before the test before has ended: a mount hangs")
                        if mounts is None:
                            mounts = answer.mounts or ()
                        else:
                            answers[answer.mount] = answer
        return mounts or (), answers

    def close(self) -> None:
        """It ends by itself once its input is closed, as soon as the kernel lets it; nobody waits for it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class PathTester:
    """Of one launcher. `address`: of our own control channel."""

    def __init__(
        self, node: str, address: Callable[[], str], make_client: MakeClient, storage: Callable[[], StorageUsed], event_log: EventLog, clock: Clock,
        *, connect: Connect = connect_to,
    ) -> None:  # fmt: skip
        self._node, self._address = node, address
        self._make_client, self._connect = make_client, connect
        self._storage = storage
        self._event_log, self._clock = event_log, clock
        self._running: asyncio.Task[None] | None = None
        self._began = -math.inf
        self._hosts = HostLookup()
        self._process = StorageProcess()

    async def start(self) -> None:
        """Before the workers are."""
        await self._process.start()

    def begin(self, order: Body) -> Body:
        """Begin the test that the coordinator asks for, and return; one too many is left out."""
        now = self._clock.monotonic()
        if now - self._began < EVERY_S or (self._running is not None and not self._running.done()):
            return {"begun": False}
        self._began = now
        self._running = asyncio.create_task(self._run(order))
        return {"begun": True}

    async def close(self) -> None:
        """The launcher ends: nothing more is told."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._process.close()

    async def _run(self, order: Body) -> None:
        try:
            wanted = self._wanted(order)
        except Exception:  # boundary: who asks may be of another version
            log.exception("no path test is run: what is asked for cannot be read")
            return
        for result in await asyncio.gather(*(test() for test in wanted), return_exceptions=True):
            if isinstance(result, Exception):  # boundary: a test that fails concerns nobody's training
                log.warning("a path test failed: %s", result, exc_info=result)

    def _wanted(self, order: Body) -> list[Callable[[], Awaitable[None]]]:
        """The tests that an order asks for. May raise anything."""
        known = {"test": str(order.get("test", "")), "incident": str(order.get("incident", "")), "testers": " ".join(map(str, order.get("testers", ())))}
        peers = {str(peer): str(address) for peer, address in list(dict(order.get("peers", {})).items())[:MOST_PEERS]}
        tests = order.get("tests", ())
        network = [partial(self._network, peers, known)] if NETWORK_TESTED in tests and peers else []
        return [*network, *([partial(self._mounts, known)] if STORAGE_TESTED in tests else [])]

    # --- network ---------------------------------------------------------------------------------------------------

    async def _network(self, peers: dict[str, str], known: dict[str, str]) -> None:
        """Our own port is tested, too: who does not reach even that one says nothing of the network."""
        began = self._clock.monotonic()
        addresses = (self._address(), *peers.values())
        own, *paths = await asyncio.gather(*(tested(address, self._hosts, self._connect, self._make_client, self._clock) for address in addresses))
        found = dict(zip(peers, paths, strict=True))
        took_s = self._clock.monotonic() - began
        unsure = self._unsure(own, took_s)
        message = "; ".join(f"{peer} {words_of_path(path)}" for peer, path in found.items())
        attributes = known | attributes_of(found) | ({"unsure": unsure} if unsure else {})
        self._event_log.of_node(NETWORK_TESTED, self._node, f"network from {self._node}: {message}", attributes)

    def _unsure(self, own: NetworkPath, took_s: float) -> str:
        if own.outcome != "answered":
            return f"it does not reach its own port either ({own.outcome})"
        return f"the test took {took_s:.1f} s, so the launcher itself was held up" if took_s > RESOLVE_S + CONNECT_S + ECHO_S + LATE_S else ""

    # --- storage ---------------------------------------------------------------------------------------------------

    async def _mounts(self, known: dict[str, str]) -> None:
        if not self._process.ready():
            return
        began = self._clock.monotonic()
        mounts, answers = await self._process.answers(self._storage())
        held_up = self._clock.monotonic() - began > STORAGE_S + LATE_S
        for mount in mounts if not held_up else ():
            answer = answers.get(mount)
            figures = {name: f"{value:.6f}" for name in ("stat_s", "read_s") if answer is not None and math.isfinite(value := getattr(answer, name))}
            error = f"no answer within {STORAGE_S:g} s" if answer is None else answer.error
            took = f"stat and read took {sum(map(float, figures.values())):.4f} s"
            told = known | figures | {"node": self._node, "mount": mount, "error": error}
            self._event_log.event(STORAGE_TESTED, Entity(kind=Kind.MOUNT, name=f"{self._node}{mount}"), f"{mount} on {self._node}: {error or took}", told)
