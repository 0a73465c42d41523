"""The launcher's end of the conversation with its zygote: forks, stores, kills and exits as awaitables."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from eagle_eye.errors import EagleEyeError, LaunchError
from eagle_eye.open_file_limit import is_shortage
from eagle_eye.training import messages, zygote

from .worker_environment import StoreAddress

log = logging.getLogger(__name__)

OnExit = Callable[[int, int, float | None], None]
"""(pid, status as of waitpid, when by CLOCK_MONOTONIC if the zygote tells)"""


class ZygoteLink:
    """Owns the zygote. Start it from the main thread: what it forks dies with the thread that forked."""

    def __init__(self, interpreter: str, on_exit: OnExit, on_lost: Callable[[], None], open_files: tuple[int, int] | None = None) -> None:
        """`open_files`: limits (soft, hard) of the workers, where the launcher has others."""
        self._open_files = open_files
        self.pid = 0
        self.modules: tuple[str, ...] = ()
        self._interpreter = interpreter
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._awaited: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()
        """An answer names the slot at most, not who asked: one question at a time."""
        self._closing = False
        self._how: tuple[tuple[str, ...], dict[str, str], str] = ((), {}, "")
        """What it was started with."""
        self._was_ready = False

    async def start(self, preload: tuple[str, ...], environment: Mapping[str, str], cwd: str) -> None:
        """Spawn it and have it import `preload`; forks asked for meanwhile wait. Raises LaunchError."""
        self._how = (preload, dict(environment), cwd)
        ours, self._process = self._spawn(environment, cwd)
        self.pid = self._process.pid
        if self._open_files is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended, or may have no other limits
                resource.prlimit(self.pid, resource.RLIMIT_NOFILE, self._open_files)
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=messages.LONGEST)
        except OSError as error:
            ours.close()  # the zygote ends with it
            raise LaunchError(f"no connection to the zygote: {error.strerror}") from error
        if "ready" not in self._awaited or self._awaited["ready"].done():
            self._awaited["ready"] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader))
        self._send("import", modules=list(preload))

    def _spawn(self, environment: Mapping[str, str], cwd: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Our end of its socket, and the process. Raises LaunchError, whatever the system refuses: a descriptor, a process, the interpreter."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise LaunchError(f"no socket for {self._interpreter}: {error.strerror}; raise the limit of open files (ulimit -n)") from error
        words = zygote.command(self._interpreter, theirs.fileno())
        try:
            return ours, subprocess.Popen(words, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=dict(environment), cwd=cwd)
        except OSError as error:
            ours.close()
            raise LaunchError(f"cannot start {self._interpreter}: {error.strerror}; check the interpreter") from error
        finally:
            theirs.close()

    async def ready(self) -> None:
        """Wait for the end of the imports. Raises LaunchError if the interpreter cannot run the zygote."""
        message = await asyncio.shield(self._awaited["ready"])
        self.modules = tuple(message["modules"])
        self._was_ready = True

    async def restart(self) -> None:
        """Start another one in the place of one that is gone; forks asked for meanwhile wait for it. Raises LaunchError, and so do they then.

        Unless it was a shortage of descriptors, threads or memory (`is_shortage`): they wait on, and this may be called again.
        """
        if self._process is not None:
            await asyncio.to_thread(self._reap, self._process)
        try:
            await self.start(*self._how)
            await self.ready()
        except LaunchError as error:
            if not is_shortage(error):
                self.give_up(error)
            raise

    def give_up(self, error: LaunchError) -> None:
        """Whoever waits for another one waits no longer."""
        ready = self._awaited["ready"]
        if not ready.done():
            ready.set_exception(error)
            ready.exception()

    @property
    def can_restart(self) -> bool:
        """It was there before: its interpreter can run it."""
        return self._was_ready

    async def fork(
        self, slot: str, argv: tuple[str, ...], environment: Mapping[str, str], cwd: str, log_file: str, python: bool
    ) -> int:
        """Start a worker; returns its pid. Raises LaunchError."""
        answer = await self._born(slot, "fork", slot=slot, argv=list(argv), env=dict(environment), cwd=cwd, log=log_file, python=python)
        return int(answer["pid"])

    async def store(self, host: str) -> tuple[StoreAddress, int]:
        """Start a new store; returns it and the pid of its process. Raises LaunchError."""
        answer = await self._born("store", "store", host=host)
        return StoreAddress(host=host, port=int(answer["port"])), int(answer["pid"])

    def kill(self, pid: int, number: int, *, group: bool = True) -> None:
        """Signal a child, with its process group or alone; a pid that is none any more is left alone."""
        self._send("kill", pid=pid, signal=int(number), group=group)

    async def close(self) -> None:
        """End the zygote and everything that it has started."""
        self._closing = True
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._process is not None:
            await asyncio.to_thread(self._reap, self._process)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    @staticmethod
    def _reap(process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    async def _born(self, key: str, kind: str, **fields: Any) -> Mapping[str, Any]:
        """What the zygote has started. Where nobody waits for that any more, the launcher follows another coordinator: it is ended, for nobody would know of it."""
        asking = asyncio.create_task(self._ask(key, kind, fields))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._end_unwanted)
            raise

    async def _ask(self, key: str, kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        async with self._one:
            await self.ready()
            future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
            self._awaited[key] = future
            self._send(kind, **fields)
            return await future

    def _end_unwanted(self, asking: "asyncio.Task[Mapping[str, Any]]") -> None:
        if not asking.cancelled() and asking.exception() is None:
            self.kill(int(asking.result()["pid"]), signal.SIGKILL)

    def _send(self, kind: str, **fields: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(messages.encode(kind, **fields))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        reason = "it closed its end"
        try:
            while line := await reader.readline():
                self._hear(messages.decode(line))
        except (OSError, ValueError, EagleEyeError) as error:
            reason = str(error)
        self._lost(reason)

    def _hear(self, message: Mapping[str, Any]) -> None:
        try:
            self._take(message)
        except Exception:  # boundary: one end that cannot be dealt with is no loss of the zygote, with which all its workers would be ended
            log.exception("what the zygote has told could not be dealt with: %s", message)

    def _take(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "exited":
            ended_s = message.get("ended_s")
            self._on_exit(int(message["pid"]), int(message["status"]), float(ended_s) if ended_s is not None else None)
            return
        key = {"ready": "ready", "stored": "store"}.get(kind, str(message.get("slot", "")))
        future = self._awaited.get(key)
        if future is None or future.done():
            return
        if kind == "failed":
            future.set_exception(LaunchError(f"the zygote could not start {key!r}: {message['error']}"))
        else:
            future.set_result(message)

    def _lost(self, reason: str) -> None:
        error = LaunchError(
            f"the zygote under {self._interpreter} is gone ({reason}): run it by hand to see why, it must be a "
            f"Python of version 3.11 or later"
        )
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that waits gets the exception; without one asyncio must not warn of it when it is collected
        if self._writer is not None:
            self._writer.close()  # the next one has a socket of its own
        if not self._closing:
            self._awaited = {"ready": asyncio.get_running_loop().create_future()} if self._was_ready else self._awaited
            log.error("%s", error)
            self._on_lost()


def kill_group(pid: int, number: int) -> None:
    """Signal what a worker has started, when its zygote cannot."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
