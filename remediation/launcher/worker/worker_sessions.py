"""The unix socket of a node's elastic workers: one connection for the life of each, lines of eagle_eye.training.messages."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from eagle_eye.errors import EagleEyeError
from eagle_eye.training import messages
from eagle_eye.writable_text import writable

from .worker_socket import keep_listening, same_user

log = logging.getLogger(__name__)

POLL_S = 0.05

Admit = Callable[[str, int], Awaitable[bool]]
"""Whether the process of that pid is the worker of that name. Waits while that is not known: a worker may speak before its zygote has reported its pid."""
Runs = Callable[[str], bool]
"""Whether the worker of that name has a thread that computes, or waits for a processor or a disk."""
Hear = Callable[[str, messages.ProbeMessage], None]
"""Takes what a worker has said, but for its holdings."""


class FenceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a fence."""

    holdings: dict[str, messages.ProbeMessage]
    """By worker."""
    silent: tuple[str, ...]


class _FenceRound:
    """One fence, until all have answered."""

    def __init__(self, epoch: int, hard: Iterable[str], soft: Iterable[str]) -> None:
        self.epoch = epoch
        self.hard = set(hard)
        self.missing = self.hard | set(soft)
        self.holdings: dict[str, messages.ProbeMessage] = {}
        self.changed = asyncio.Event()

    def answered(self, worker: str, message: messages.ProbeMessage) -> None:
        if worker in self.missing and int(message.get("epoch", -1)) == self.epoch:
            self.holdings[worker] = message
            self.forget(worker)

    def forget(self, worker: str) -> None:
        self.missing.discard(worker)
        self.changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.changed.clear()
            await self.changed.wait()


class WorkerSessions:
    """Who speaks is asked for its pid once, and then believed: the socket is the user's own."""

    def __init__(self, path: Path, admit: Admit, hear: Hear, runs: Runs, answer_s: float, answer_longest_s: float) -> None:
        """`answer_s`: one that does not answer a hard fence within it, and does not run, is silent; one that runs after `answer_longest_s`."""
        self._path = path
        self._runs = runs
        self._answer_s, self._answer_longest_s = answer_s, answer_longest_s
        self._admit = admit
        self._hear = hear
        self._server: asyncio.Server | None = None
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._round: _FenceRound | None = None

    async def start(self) -> None:
        """Listen. A socket that a killed launcher left behind is replaced."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=messages.LONGEST)
        self._path.chmod(0o600)

    async def keep(self) -> None:
        """Listen anew where the socket was taken away; until cancelled. Raises OSError."""
        await keep_listening(self._path, self.start, lambda: self._server)

    async def stop(self) -> None:
        """Hang up on everybody."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers.values()):
            writer.close()
        self._path.unlink(missing_ok=True)

    @property
    def present(self) -> tuple[str, ...]:
        """Workers with a session."""
        return tuple(self._writers)

    def tell(self, worker: str, kind: str, **words: object) -> bool:
        """Say something to a worker; False if it has no session."""
        return self.send(worker, messages.encode(kind, **words))

    def send(self, worker: str, line: bytes) -> bool:
        """The same, as a line."""
        writer = self._writers.get(worker)
        if writer is None or writer.is_closing():
            return False
        writer.write(line)
        return True

    # --- fences ---------------------------------------------------------------------------------------------------

    def fence(self, epoch: int, hard: Iterable[str], soft: Iterable[str] = ()) -> "asyncio.Task[FenceResult | None]":
        """Fence these at once; the task ends with what they hold, or with None when a newer fence has taken its place."""
        before, self._round = self._round, _FenceRound(epoch, hard, soft)
        if before is not None:
            before.changed.set()
        for worker in tuple(self._round.missing):
            if not self.tell(worker, "fence", epoch=epoch, soft=worker not in self._round.hard):
                self._round.missing.discard(worker)
        return asyncio.create_task(self._collect(self._round))

    async def _collect(self, fence: _FenceRound) -> FenceResult | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._answer_s):
                await fence.until(lambda: fence is not self._round or not fence.missing & fence.hard)
        silent = await self._silent(fence)
        await fence.until(lambda: fence is not self._round or not fence.missing - fence.hard)
        return FenceResult(holdings=fence.holdings, silent=silent) if fence is self._round else None

    async def _silent(self, fence: _FenceRound) -> tuple[str, ...]:
        """Who has not answered in time although it stands still; who runs is waited for longer."""
        ran = set(fence.missing & fence.hard)
        for _ in range(round((self._answer_longest_s - self._answer_s) / POLL_S)):
            ran = {worker for worker in ran & fence.missing & fence.hard if self._runs(worker)}
            if not ran or fence is not self._round:
                break
            await asyncio.sleep(POLL_S)
        return tuple(sorted(fence.missing & fence.hard))

    def lost(self, worker: str) -> None:
        """Its process has ended: nobody waits for its answer."""
        if self._round is not None:
            self._round.forget(worker)

    # --- connections ------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = ""
        try:
            if not same_user(writer.get_extra_info("socket")):
                return
            while line := await reader.readline():
                message = writable(messages.decode(line))
                worker = worker or await self._introduced(message, writer)
                self._take(worker, message)
        except ConnectionError as error:  # its process was killed
            log.debug("the session of %s on %s is over: %s", worker or "a stranger", self._path, error)
        except (OSError, ValueError, KeyError, EagleEyeError) as error:
            log.warning("a message on %s was not understood: %s", self._path, error)
        except asyncio.CancelledError:  # the loop ends; the streams module would log it as an error
            pass
        finally:
            if self._writers.get(worker) is writer:
                del self._writers[worker]
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                writer.close()

    async def _introduced(self, message: messages.ProbeMessage, writer: asyncio.StreamWriter) -> str:
        """Raises ValueError for a stranger."""
        worker = str(message.get("worker", ""))
        if message["kind"] != "join" or not await self._admit(worker, int(message.get("pid", 0))):
            raise ValueError(f"{message['kind']!r} came first, or {worker!r} is no worker of this node")
        self._writers[worker] = writer
        return worker

    def _take(self, worker: str, message: messages.ProbeMessage) -> None:
        try:
            if message["kind"] != "held_state":
                self._hear(worker, message)
            elif self._round is not None:
                self._round.answered(worker, message)
        except Exception:  # boundary: a worker whose session is closed for that ends at the next epoch
            log.exception("what %s has said could not be dealt with: %s", worker, message["kind"])
