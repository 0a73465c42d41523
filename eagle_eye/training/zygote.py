"""The zygote: a process of the user's own interpreter that has imported torch, and forks workers in milliseconds.

It has no thread, no gRPC and no CUDA context, so that a fork is safe. It talks with the launcher over an
inherited socket (messages.py). Everything it forks ends with it:

- launcher gone (the socket closes, or the parent changes): the zygote kills all process groups and ends;
- zygote gone: the kernel kills the workers (PR_SET_PDEATHSIG); the launcher, which knows their groups, kills what
  they had started;
- worker gone: the rest of its process group is killed before the exit is reported.

The zygote has no PR_SET_PDEATHSIG of its own: it would die before it could kill the groups.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from . import messages, optimizer_steps, probe, script_runner, worker_output

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_AFTER_PARENT_S = 1.0
_OF_THE_LAUNCHER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What a terminal, `timeout` and a scheduler (Slurm: scancel, --signal) send to a whole process group: the launcher answers, and ends us by its socket."""
_OOM_SCORE = 100
"""What a worker's oom_score_adj is above the zygote's (proc(5)): as if it used a tenth of the memory more."""
PREIMPORTED = ("torch", "torch.distributed", "torch._dynamo", "numpy", "safetensors.torch")
"""What the launcher asks for. torch._dynamo because the first optimizer of a process imports it, in 1.5 s."""
NOT_FOUND = 127
NOT_EXECUTABLE = 126


def command(interpreter: str, file: int) -> list[str]:
    """Command line of a zygote under `interpreter` that talks over the inherited file descriptor `file`.

    By path: eagle_eye need not be installed where the interpreter lives, and both ends speak the same version.
    """
    return [interpreter, str(Path(__file__).resolve().parent), "--fd", str(file)]


def main(arguments: list[str]) -> NoReturn:
    """Serve the launcher until it goes away; never returns."""
    parser = argparse.ArgumentParser(prog="eagle-eye-zygote", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the launcher")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; several workers share the cores
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to ask for GPUs must not initialise CUDA here
    with socket.socket(fileno=options.fd) as launcher:
        launcher.set_inheritable(False)
        Zygote(launcher).serve()
    os._exit(0)


@dataclass(slots=True)
class Child:
    """A process that was forked here."""

    slot: str
    """The launcher's name for it."""
    port: int = -1
    """File descriptor from which the port of a store is read, -1 else."""


@dataclass(slots=True)
class Zygote:
    """The one loop: messages in, forks and exits out."""

    launcher: socket.socket
    children: dict[int, Child] = field(default_factory=dict)
    unsafe: str = ""
    """Why nothing may run in a fork of this process (it is exec'ed instead); empty as it should be."""
    _lines: messages.Lines = field(default_factory=messages.Lines)
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    _wake: tuple[int, int] = (-1, -1)
    _parent: int = field(default_factory=os.getppid)
    _actions: dict[int, Any] = field(default_factory=dict)
    """Of signals that are ignored here: what they do in a worker."""
    _libc: Any = field(default_factory=lambda: ctypes.CDLL(None, use_errno=True))

    def serve(self) -> None:
        """Run until the launcher is gone, then kill what is left."""
        self._listen()
        try:
            while os.getppid() == self._parent and self._turn():
                pass
        except (ConnectionError, BrokenPipeError):
            pass  # the launcher is gone
        self._end()

    def _listen(self) -> None:
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a dead worker leaves behind becomes ours to end
        self._actions = {int(number): signal.signal(number, signal.SIG_IGN) for number in _OF_THE_LAUNCHER}
        self._actions[signal.SIGINT] = signal.default_int_handler
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self.launcher, selectors.EVENT_READ, self._read)
        self._selector.register(self._wake[0], selectors.EVENT_READ, self._reap)

    def _turn(self) -> bool:
        for key, _ in self._selector.select(_LOOK_AFTER_PARENT_S):
            act: Callable[[], bool] = key.data
            if not act():
                return False
        return True

    def _read(self) -> bool:
        data = self.launcher.recv(65536)
        for line in self._lines.feed(data):
            self._answer(messages.decode(line))
        return bool(data)

    def _answer(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "import":
            self._import(message.get("modules", []))
        elif kind == "fork":
            self._fork(message)
        elif kind == "store":
            self._store(str(message.get("host", "127.0.0.1")))
        elif kind == "kill":
            self._kill(int(message["pid"]), int(message.get("signal", signal.SIGKILL)), bool(message.get("group", True)))
        else:
            self._send("failed", slot="", error=f"unknown message {kind!r}")

    def _send(self, kind: str, **fields: Any) -> None:
        self.launcher.sendall(messages.encode(kind, **fields))

    def _import(self, modules: list[str]) -> None:
        began = time.monotonic()
        loaded, missing = [], {}
        for name in modules:
            try:
                importlib.import_module(name)
                loaded.append(name)
            except Exception as error:  # noqa: BLE001 - the script will get the same error itself
                missing[name] = f"{type(error).__name__}: {error}"
        self.unsafe = _why_unsafe()
        gc.collect()
        gc.freeze()  # so that a collection in a worker does not copy every page of what was imported here
        seconds = time.monotonic() - began
        self._send("ready", pid=os.getpid(), modules=loaded, missing=missing, unsafe=self.unsafe, seconds=seconds)

    # --- children ---------------------------------------------------------------------------------------------

    def _fork(self, message: Mapping[str, Any]) -> None:
        slot = str(message.get("slot", ""))
        try:
            pid = self._spawn(lambda: _work(message, not self.unsafe))
        except OSError as error:
            self._send("failed", slot=slot, error=f"cannot fork: {error.strerror}")
            return
        self.children[pid] = Child(slot)
        self._send("forked", slot=slot, pid=pid)

    def _store(self, host: str) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            pid = self._spawn(lambda: _serve_store(host, writing))
        except OSError as error:
            os.close(reading)
            self._send("failed", slot="store", error=f"cannot fork: {error.strerror}")
            return
        finally:
            os.close(writing)
        self.children[pid] = Child("store", reading)
        self._selector.register(reading, selectors.EVENT_READ, lambda: self._report_store(pid, host))

    def _report_store(self, pid: int, host: str) -> bool:
        child = self.children.get(pid)
        if child is None or child.port < 0:
            return True
        text = os.read(child.port, 4096).decode(errors="replace")
        self._forget_port(child)
        if text.isdigit():
            self._send("stored", host=host, port=int(text), pid=pid)
        else:
            self._send("failed", slot="store", error=text or "the store's process died at its start")
        return True

    def _forget_port(self, child: Child) -> None:
        self._selector.unregister(child.port)
        os.close(child.port)
        child.port = -1

    def _spawn(self, body: Callable[[], int]) -> int:
        """Fork; the child runs `body` and dies with the exit code (or, negative, the signal) that it returns."""
        zygote = os.getpid()
        _flush()
        waiting = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_LAUNCHER)  # one that comes to a child that ignores them as we do would be lost: it waits
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)
            raise
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)
            return pid
        code = 1
        try:
            self._become_child(zygote)
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)
            code = body()
        except BaseException:  # noqa: BLE001 - no exception may reach the copy of the zygote's own loop below on the stack
            sys.excepthook(*sys.exc_info())
        finally:
            _die(code)

    def _become_child(self, zygote: int) -> None:
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != zygote:  # it died before the line above
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, action in self._actions.items():
            signal.signal(number, action)
        self._selector.close()
        self.launcher.close()
        for file in self._wake:
            os.close(file)

    def _kill(self, pid: int, number: int, group: bool) -> None:
        if pid in self.children:  # never a pid that is not, or no more, ours
            _signal(pid, number, group)

    def _reap(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake[0], 4096)
        with contextlib.suppress(ChildProcessError):
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                self._collect(dead.si_pid)
        return True

    def _collect(self, pid: int) -> None:
        child, ended_s = self.children.pop(pid, None), time.monotonic()
        if child is not None:
            _signal(pid, signal.SIGKILL, True)  # its group; the pid is still taken, so no stranger can be hit
        _, status = os.waitpid(pid, 0)
        if child is None:
            return  # an orphan of a worker
        if child.port >= 0:
            self._report_failed_store(child)
        self._send("exited", pid=pid, slot=child.slot, status=status, ended_s=ended_s)

    def _report_failed_store(self, child: Child) -> None:
        os.set_blocking(child.port, False)
        with contextlib.suppress(BlockingIOError):
            text = os.read(child.port, 4096).decode(errors="replace")
            self._send("failed", slot="store", error=text or "the store's process died at its start")
        self._forget_port(child)

    def _end(self) -> None:
        for pid in self.children:
            _signal(pid, signal.SIGKILL, True)
        for pid in _descendants():
            _signal(pid, signal.SIGKILL, False)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
                for pid in _descendants():  # orphans that have just become ours
                    _signal(pid, signal.SIGKILL, False)


def _flush() -> None:
    """Before a fork. What a module has printed at its import stays in the buffer where the launcher's output takes nothing: that must keep nobody from being born."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a full disk, a reader that is gone; closed; none at all
            stream.flush()


def _signal(pid: int, number: int, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)  # also a child that has not yet left our group


def _why_unsafe() -> str:
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"the imported modules started {threads - 1} threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "the imported modules initialised CUDA"
    return ""


def _descendants() -> list[int]:
    """Our children as the kernel knows them, adopted orphans included."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _die(code: int) -> NoReturn:
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


# --- in the child ----------------------------------------------------------------------------------------------


def _go_first() -> None:
    """Where memory is short the kernel ends a worker, which is started again, not the zygote or the launcher: with them the node is lost."""
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        path.write_text(str(min(1000, int(path.read_text()) + _OOM_SCORE)))


def _work(message: Mapping[str, Any], forkable: bool) -> int:
    """A worker's whole life. Returns its exit code."""
    _go_first()
    _redirect(message.get("log"))
    os.environ.clear()
    os.environ.update(message["env"])
    argv = [str(word) for word in message["argv"]]
    if message.get("cwd"):
        os.chdir(message["cwd"])
    if not (forkable and message.get("python", True) and script_runner.is_ours(argv)):
        return _execute(argv)
    _reseed()
    optimizer_steps.begin(probe.monitor(), os.environ)
    return script_runner.run(argv)


def _redirect(log: str | None) -> None:
    quiet = os.open(os.devnull, os.O_RDONLY)
    os.dup2(quiet, 0)
    os.close(quiet)
    if log:
        file = _log_file(Path(log))
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    worker_output.open_streams()


def _log_file(log: Path) -> int:
    """Its descriptor. A log that cannot be written (its directory was tidied up, the disk is read-only) costs what a worker says, never the worker."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"eagle-eye: {log} cannot be written, what this worker says is lost: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _execute(argv: list[str]) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
    try:
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - a command of the user's, as a list, without a shell
    except OSError as error:
        print(f"eagle-eye: cannot run {argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _reseed() -> None:
    """What a fresh interpreter would have and a fork shares: seeds and the number of threads.

    `random` reseeds itself after a fork; numpy and torch would draw the same numbers in every worker.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.random.default_generator.seed()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and 0 < int(threads) != torch.get_num_threads():
        torch.set_num_threads(int(threads))


def _serve_store(host: str, port_pipe: int) -> int:
    """Serve a TCPStore until killed."""
    try:
        import torch.distributed as distributed

        store = distributed.TCPStore(host, 0, None, True, wait_for_workers=False)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher must know
        os.write(port_pipe, f"{type(error).__name__}: {error}"[:2000].encode())
        return 1
    os.write(port_pipe, str(store.port).encode())
    os.close(port_pipe)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
