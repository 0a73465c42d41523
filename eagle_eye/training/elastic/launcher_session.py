"""The session of an elastic worker with its launcher, one connection for its whole life: fences and assignments come in, held state goes out.

The thread of the session answers a fence even while the main thread is stuck in a collective or hangs in Python, in
this order and under one lock: it records what the worker holds, bars the commit of an older epoch, aborts the process
group in use, and sends the answer. So the answer stays true: no step is committed after it in an older epoch.
The messages are described in eagle_eye.training.messages.
"""

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from eagle_eye.errors import ElasticError, Ended, Fenced, FencedOut, Halted, LauncherLost
from eagle_eye.training import messages

from .epoch_protocol import AbortableGroup, EpochAssignment, HeldState, read_assignment

__all__ = ["EpochAssignment", "HeldState", "LauncherSession"]

_ENTERED = ("committing", "applying")
_CLOSED = "this worker has closed its session"


class LauncherSession:
    """The worker's end of the session. Its thread is a daemon; all methods may be called from any thread."""

    def __init__(self, connection: socket.socket, worker: str, pid: int) -> None:
        self.worker = worker
        self.pid = pid
        self.lock = threading.RLock()
        """Guards what the worker holds: it is changed under this lock only, and nothing may block on another worker under it."""
        self.held_state: Callable[[], HeldState] = lambda: HeldState(step=0)
        """Set by the worker: what it holds now. Called under the lock."""
        self.fenced_epoch = -1
        """The newest epoch whose fence was answered: nothing of an older epoch is started any more."""
        self.soft_epoch = -1
        """The newest epoch whose soft fence waits for a step boundary."""
        self._asked_softly = False
        """It came, perhaps once more, and was not answered since."""
        self._changed = threading.Condition(self.lock)
        self._writing = threading.Lock()
        self._connection = connection
        self._group: AbortableGroup | None = None
        self._committing: int | None = None
        self._awaited: int | None = None
        """The worker is between two steps and waits for an epoch above this one; None otherwise."""
        self._hard = -1
        """The newest epoch of a hard fence: one that came in the middle of another epoch."""
        self._assignment: EpochAssignment | None = None
        self._outcome: Callable[[], ElasticError] | None = None
        self._lost = ""
        self._questions = 0
        self._answers: dict[int, messages.ProbeMessage | None] = {}
        close_in_child = weakref.WeakMethod(self._close_in_child)
        os.register_at_fork(after_in_child=lambda: (found := close_in_child()) and found())
        self._thread = threading.Thread(target=self._listen, name="eagle-eye-session", daemon=True)
        self._thread.start()

    @classmethod
    def connect(cls, path: str, worker: str, pid: int) -> "LauncherSession":
        """A session with the launcher that listens on `path`. A process that forks connects after the fork. Raises LauncherLost."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise LauncherLost(f"no launcher listens on {path} (EAGLE_EYE_ELASTIC_SOCKET): {error.strerror}") from error
        return cls(connection, worker, pid)

    # --- what the worker sends -------------------------------------------------------------------------------------

    def join(self, *, epoch: int, step: int, micro_batches: int, segments: int, layers: list[int], fresh: bool) -> None:
        """Ask to join the job; again after FencedOut. `segments`: how many a reduced gradient has; `layers`: bytes of state of each."""
        with self.lock:
            self._outcome = self._assignment = None
        self.send(
            "join", pid=self.pid, epoch=epoch, step=step, micro_batches=micro_batches, segments=segments,
            layers=layers, fresh=fresh,
        )

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message. Raises nothing if the launcher is gone: the next call that waits for it raises LauncherLost."""
        line = messages.encode(kind, worker=self.worker, **fields)
        try:
            with self._writing:
                self._connection.sendall(line)
        except OSError as error:
            self._lose(f"the launcher is gone: {error.strerror}")

    def use_group(self, group: AbortableGroup | None) -> None:
        """From now on a hard fence aborts `group`; the one before is closed."""
        with self.lock:
            before, self._group, self._committing = self._group, group, None
            if group is not None and (self.fenced_epoch > group.epoch or self._outcome is not None):
                group.abort()
        if before is not None and before is not group:
            before.close()

    def close(self) -> None:
        """Abort the process group and close the connection."""
        self.use_group(None)
        self._lose(_CLOSED)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes our thread
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._connection.close()

    # --- what the worker waits for -------------------------------------------------------------------------------------

    def check(self, epoch: int) -> None:
        """Raises Fenced if a newer epoch is being formed, and Halted, FencedOut or Ended if the launcher sent that.

        Does not raise LauncherLost: an established group goes on without its launcher.
        """
        if self._outcome is not None:
            raise self._outcome()
        if self.fenced_epoch > epoch:
            raise Fenced(self.fenced_epoch)

    def may_commit(self, epoch: int) -> bool:
        """Whether the worker may start to commit this step. If so, the answer to a fence has the phase committing from now on.

        That ends with the step (the held state's step rises) or with the next process group.
        """
        with self.lock:
            if self._outcome is not None or self.fenced_epoch > epoch:
                return False
            self._committing = self.held_state().step
            return True

    def answer_soft_fence(self, held_state: HeldState) -> None:
        """Answer a soft fence, if there is one. Called between two steps; the caller then waits for the assignment."""
        with self._changed:
            if not self._asked_softly or self.soft_epoch < self.fenced_epoch:
                return
            self._asked_softly = False
            epoch = self.fenced_epoch = self.soft_epoch
        self._answer(epoch, held_state)

    def next_assignment(self, above: int) -> EpochAssignment:
        """Block until the newest epoch, if above `above`, is ready. Raises Halted, FencedOut, Ended, LauncherLost.

        A worker that waits here is between two steps, so soft fences are answered at once; but not after a hard fence for an
        epoch above `above`, or after its assignment has come: the other workers count on this one in that epoch, and its soft
        fences are for the step after.
        """
        with self._changed:
            self._awaited = above if self._hard <= above else None
        try:
            self._answer_soft()
            with self._changed:
                self._changed.wait_for(lambda: self._lost or self._outcome or self._newest(above))
                assignment = self._newest(above)
                if self._outcome is not None:
                    raise self._outcome()
                if assignment is None:
                    raise LauncherLost(self._lost)
                return assignment
        finally:
            with self._changed:
                self._awaited = None

    def wait_until(self, epoch: int, ready: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Block until `ready()`. Raises Fenced, TimeoutError, LauncherLost, and Halted, FencedOut or Ended if the launcher sent that."""
        with self._changed:
            over = self._changed.wait_for(
                lambda: ready() or self._lost or self._outcome or self.fenced_epoch > epoch, timeout_s
            )
            if ready():
                return
            self.check(epoch)
            if self._lost:
                raise LauncherLost(self._lost)
            if not over:
                raise TimeoutError(f"the launcher did not answer in {timeout_s} s")

    def notify(self) -> None:
        """Let threads in `wait_until` check their condition again."""
        with self._changed:
            self._changed.notify_all()

    def ask_store(self, epoch: int, timeout_s: float, **question: Any) -> messages.ProbeMessage:
        """The answer of the launcher's key-value store to a question. Raises as wait_until does."""
        with self.lock:
            self._questions += 1
            number = self._questions
            self._answers[number] = None
        try:
            self.send("store", id=number, timeout_s=timeout_s, **question)
            self.wait_until(epoch, lambda: self._answers[number] is not None, timeout_s)
            return self._answers[number] or {}
        finally:
            del self._answers[number]

    # --- the thread -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        lines = messages.Lines(messages.LONGEST_ASSIGNMENT)
        try:
            while data := self._connection.recv(65536):
                for line in lines.feed(data):
                    self._receive(messages.decode(line))
            self._lose("the launcher has closed the session")
        except OSError as error:
            self._lose(f"the launcher is gone: {error.strerror}")
        except Exception as error:  # noqa: BLE001 - threads that wait must not wait for one that is dead
            self._lose(f"the session with the launcher failed: {error!r}")

    def _receive(self, message: messages.ProbeMessage) -> None:
        kind = message["kind"]
        if kind == "fence":
            (self._note_soft if message.get("soft") else self._fence)(int(message["epoch"]))
        elif kind == "stored":
            self._note_answer(message)
        elif kind == "assignment":
            self._note_assignment(read_assignment(message))
        elif kind == "fenced":
            self._end(lambda: FencedOut(str(message.get("reason", ""))))
        elif kind == "ended":
            self._end(lambda: Ended(str(message.get("reason", ""))))
        elif kind == "halt":
            self._end(lambda: Halted(str(message.get("reason", "")), int(message.get("code", 1)), bool(message.get("saves", True))))

    def _fence(self, epoch: int) -> None:
        with self._changed:
            held = self.held_state()
            if held.step == self._committing and held.phase not in _ENTERED:
                held = replace(held, phase="committing")
            self.fenced_epoch = max(self.fenced_epoch, epoch)
            self._hard = max(self._hard, epoch)
            if self._group is not None and self._group.epoch < epoch:
                self._group.abort()
            self._changed.notify_all()
        self._answer(epoch, held)

    def _note_soft(self, epoch: int) -> None:
        """It comes again where the launcher's session to the coordinator has broken: the first answer may not have arrived there."""
        with self._changed:
            if self._assignment is not None and epoch <= self._assignment.epoch:
                return  # that epoch has begun
            self.soft_epoch, self._asked_softly = max(self.soft_epoch, epoch), True
        self._answer_soft()

    def _answer_soft(self) -> None:
        with self._changed:
            if self._awaited is None or self._newest(self._awaited) or not self._asked_softly:
                return
            held = self.held_state()
        self.answer_soft_fence(held)

    def _answer(self, epoch: int, held: HeldState) -> None:
        self.send("held_state", epoch=epoch, **asdict(held))

    def _note_assignment(self, assignment: EpochAssignment) -> None:
        with self._changed:
            if self._assignment is None or assignment.epoch > self._assignment.epoch:
                self._assignment = assignment
            self._changed.notify_all()

    def _newest(self, above: int) -> EpochAssignment | None:
        newest = self._assignment
        return newest if newest is not None and newest.epoch > above and newest.epoch >= self.fenced_epoch else None

    def _note_answer(self, message: messages.ProbeMessage) -> None:
        with self._changed:
            if message.get("id") in self._answers:  # else no thread waits for it any more
                self._answers[message["id"]] = message
                self._changed.notify_all()

    def _end(self, outcome: Callable[[], ElasticError]) -> None:
        with self._changed:
            self._outcome = outcome
            if self._group is not None:
                self._group.abort()
            self._changed.notify_all()

    def _lose(self, why: str) -> None:
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()

    def _close_in_child(self) -> None:
        """In a forked child: the connection is the parent's, and ends with the parent."""
        self._connection.close()
        self._lost = "a forked child has no session of its own"
