"""The probe: reports what a training loop does, in two lines of the script, at less than half a microsecond a mark.

    monitor = eagle_eye.monitor()
    for batch in monitor.steps(loader):
        with monitor.phase("forward"):
            loss = model(batch)
        monitor.log(loss=loss, tokens=batch.numel())

It writes into a ring in shared memory (ring_buffer.py) and nowhere else. It never raises into the loop, never blocks
it and never waits for a device; a fault of its own is counted (`LoopState.faults`) and swallowed. Without a launcher
it writes nothing.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from . import (
    batch_digest,
    exception_reporter,
    gpu_phases,
    gradient_check,
    group_progress,
    live_flight_recorder,
    messages,
    probe_socket,
    replica_checks,
)
from .batch_digest import BatchDigests
from .fault_drills import AcceleratorError
from .phase_contexts import PeerWait, Phase
from .replica_checks import ReplicaChecks, Replicated
from .ring_buffer import (
    BEGAN,
    DONE,
    EXIT_CODE,
    FAULTS,
    MARKED,
    MARKS,
    NAMES,
    PHASE,
    RUNNING,
    SCRIPT_ENDED,
    STEP,
    WORDS,
    RingWriter,
)
from .runtime_values import RuntimeValues
from .step_records import StepRecords

Item = TypeVar("Item")
_log = logging.getLogger("eagle_eye.probe")
_INDEX = {name: index for index, name in enumerate(messages.PHASES)}
_DATA = _INDEX["data"]
_OTHER, _COMMUNICATION, _EVALUATION = _INDEX["other"], _INDEX["communication"], _INDEX["evaluation"]
_STEP_S = NAMES.index("step_s")
_FIRST_PHASE = NAMES.index(f"{messages.PHASES[0]}_s")
_PRIVATE = ("EAGLE_EYE_RING", "EAGLE_EYE_PROBE_SOCKET", "EAGLE_EYE_TOKEN")
"""Removed from the environment, so that no child process of the script acts as the worker."""


class Monitor:
    """What a training loop calls to report its steps. All methods may be called in any order, from the thread of the loop."""

    def __init__(
        self,
        ring: RingWriter | None,
        *,
        skip: frozenset[int] = frozenset(),
        clock_ns: Callable[[], int] = time.monotonic_ns,
        time_gpu: bool = True,
    ) -> None:
        self._ring = ring
        self._skip = skip
        self._clock = clock_ns
        self._words = memoryview(bytearray(8 * WORDS)).cast("q") if ring is None else ring.now
        self._columns: dict[str, int] = {}
        self._values: dict[int, float] = {}
        self._records = None if ring is None else StepRecords(ring, self._fault, self._recorded, time_gpu=time_gpu)
        self._ask_gpu = time_gpu and ring is not None
        self._runtime: RuntimeValues | None = None
        self._replicas: ReplicaChecks | None = None
        self._replicas_said = self._watches_updates = False
        """The script has said which tensors they are; optimizers call `before_update`."""
        self._batches = None if ring is None or os.environ.get(batch_digest.VARIABLE) == "0" else BatchDigests(clock_ns)
        self._spent = [0] * len(_INDEX)
        self._phase = _OTHER
        self._marked = clock_ns()
        self._began = self._marked
        self._marks = 0
        self._step = -1
        self._in_step = False
        self._words[STEP] = -1
        if ring is None:  # there is no reader: cost nothing
            self.mark = self._ignore  # type: ignore[method-assign]

    # --- what a script calls --------------------------------------------------------------------------------------

    @property
    def watched(self) -> bool:
        """Whether there is a ring that the launcher and the agent can read."""
        return self._ring is not None

    @property
    def step(self) -> int:
        """Number of the step that was begun last, -1 before the first."""
        return self._step

    def steps(self, loader: Iterable[Item], start: int = 0) -> Iterator[Item]:
        """Yield the batches of `loader`; each is a step, numbered from `start`.

        A step begins when its batch is asked for (phase `data`) and ends when the next one is asked for, or the
        loader is at its end; one that is left by `break` is not recorded. Steps that the launcher lists to be
        skipped are drawn and thrown away. Exceptions of the loader pass through.
        """
        number = start
        batches = iter(loader)
        try:
            while True:
                self.begin(number)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                if number not in self._skip:
                    self.batch(batch)
                    self.mark("other")
                    yield batch
                    self.end()
                number += 1
        finally:
            self.stop()

    def begin(self, number: int) -> None:
        """Begin step `number` in phase `data`: for loops that cannot use `steps`."""
        try:
            self._step, self._in_step = number, True
            self._values = {}
            self._spent = [0] * len(_INDEX)
            words = self._words
            self._began = self._marked = now = self._clock()
            self._phase = _DATA
            self._marks += 1
            words[BEGAN] = now
            words[MARKED] = now
            words[PHASE] = _DATA
            words[STEP] = number
            words[RUNNING] = self._marks
            words[MARKS] = self._marks
            if self._ask_gpu:
                self._begin_on_gpu(now)
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def set_epoch(self, epoch: int) -> None:
        """The steps that end from now on are of this epoch: for elastic workers, which go through several."""
        if self._ring is None or self._records is None:
            return
        try:
            self._records.store_all()  # they are of the epoch before
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)
        self._ring.set_epoch(epoch)

    def end(self) -> None:
        """End the step and store its record. Until the next one begins the loop is between two steps, in phase `other`."""
        self._in_step = False
        if self._records is None:
            return
        due = None
        try:
            now = self._clock()
            spent = self._spent
            self._enter(_OTHER, now)
            values = self._values
            values[_STEP_S] = (now - self._began) / 1e9
            for column, nanoseconds in enumerate(spent, _FIRST_PHASE):
                if nanoseconds:
                    values[column] = nanoseconds / 1e9
            if self._runtime is not None:
                self._add_runtime(self._runtime, values, now)
            if self._batches is not None and not self._add_digest(batch_digest.VALUE, self._batches.end, values[_STEP_S]):
                self._batches = None
            if self._replicas is not None:
                self.log(**self._replicas.behind(self._step, values[_STEP_S]))
            self._records.end(self._step, now, self._marks, values)
            if self._replicas is not None and self._replicas.replay_due(self._step):
                due = self._replicas
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)
        if due is not None:
            self._replay(due)

    def stop(self) -> None:
        """The loop is over: no progress is no stall from here on."""
        self._in_step = False
        try:
            if self._records is not None:
                self._enter(_OTHER, self._clock())
            self._words[RUNNING] = -abs(self._words[RUNNING])
            if self._records is not None:
                self._records.store_all()
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def mark(self, phase: str) -> None:
        """From here on the loop is in `phase` (one of messages.PHASES), until the next mark."""
        try:  # `_enter`, written out: a loop calls nothing of ours as often as this
            index = _INDEX[phase]
            now = self._clock()
            self._spent[self._phase] += now - self._marked
            self._phase = index
            self._marked = now
            self._marks = marks = self._marks + 1
            words = self._words
            words[MARKED] = now
            words[PHASE] = index
            words[MARKS] = marks
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def phase(self, name: str) -> Phase:
        """`with monitor.phase("forward"):` marks `name`, and at its end the phase that was before."""
        return Phase(self, name, messages.PHASES[self._phase])

    def wait(self) -> PeerWait:
        """A wait for others within a phase, as a context. It is no mark: workers of a pipeline wait unequally often, and are compared by their marks."""
        return PeerWait(self._shift, self._phase, _COMMUNICATION)

    def log(self, **values: Any) -> None:
        """Numbers of this step: floats, integers, tensors of one element; the last value of a name counts.

        A tensor on a device is copied to pinned memory without waiting. The step's record is held back until the device has
        got there; if it has not before eight more steps are over, the value is dropped.
        """
        if self._ring is None:
            return
        try:
            columns = self._columns
            for name, value in values.items():
                column = columns.get(name)
                if column is None:
                    columns[name] = column = self._ring.column(name)
                if column < 0:
                    self._words[FAULTS] += 1  # more names than a record has columns
                elif type(value) is float:
                    self._values[column] = value
                else:
                    self._put(column, value)
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def replicas(self, model: Replicated, *, replay: Callable[[], Any] | None = None) -> None:
        """These parameters are the same on all replicas behind each step, as those of a data-parallel model are: every so many steps a digest of them, and of their gradients behind
        the exchange, is compared. Gradients are looked at before they are exchanged, too: whose is no number first is known by that.

        `model`: a module, its parameters, or a function that gives them. `replay`: computes the loss of the last batch once more, of a module, and does nothing else; None while there is
        none: a device that does not compute the same from it twice is told of. `EAGLE_EYE_REPLICA_DIGESTS=0`, `EAGLE_EYE_GRADIENT_CHECKS=0` and `EAGLE_EYE_REPLAYS=0` in the
        environment leave them out.
        """
        self._replicas_said = True
        self._compare(model, replay)

    def found_replicas(self, model: Replicated) -> None:
        """The same, said by whoever watches a script from outside: what the script itself has said stays."""
        if not self._replicas_said:
            self._compare(model, None)

    def batch(self, batch: Any) -> None:
        """This micro-batch is data of the step: of its tensors a digest is made, so that data which come again, and none else should, are seen. `steps` does it by itself.

        `EAGLE_EYE_BATCH_DIGESTS=0` in the environment leaves it out.
        """
        if self._batches is None:
            return
        try:
            self._batches.add(self._step, batch)
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._batches = None
            self._fault(error)

    def watch_runtime(self) -> None:
        """Steps also tell of garbage collection, compilation and memory of this process."""
        if self._ring is not None and self._runtime is None:
            self._runtime = RuntimeValues(self._ring.column, self._clock)
            self._runtime.watch()

    def before_update(self, optimizer: Any) -> None:
        """An optimizer is about to write: torch calls it, or whoever watches the script."""
        if self._replicas is not None and self._in_step:
            values = self._replicas.before_update(self._step, optimizer)
            if values:
                self.log(**values)

    def watch_updates(self) -> None:
        """Be called by each optimizer from now on. Not from within its step: torch goes through the list of its hooks then."""
        if not self._watches_updates:
            self._watches_updates = True
            replica_checks.watch_updates(lambda stepping: self.before_update(stepping))  # noqa: PLW0108 - looked up at each call: a replay puts another in its place

    # --- what the rest of eagle_eye.training calls ------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What the probe's socket answers. running: in the training loop, from its first step until it is over; in_step: and not between two steps."""
        words = self._words
        return {
            "pid": os.getpid(),
            "step": words[STEP],
            "phase": messages.PHASES[words[PHASE]],
            "marks": words[MARKS],
            "running": words[RUNNING] > 0,
            "in_step": self._in_step,
            "completed": words[DONE],
            "faults": words[FAULTS],
            "gpu_steps_missed": 0 if self._records is None else self._records.missed,
        }

    def store_error(self, error: Mapping[str, Any]) -> None:
        """Store the exception that ends the process in the ring, to be read post mortem."""
        if self._ring is not None:
            self._ring.write_error(error)

    def store_end(self, code: int) -> None:
        """Store that the script is over, with which exit code: its peers may break before its process has ended."""
        self._words[EXIT_CODE] = code
        self._words[SCRIPT_ENDED] = self._clock()

    def disable(self) -> None:
        """Write nothing from now on: called in a forked child, because the ring is the parent's."""
        self._ring, self._batches, self._replicas, self._ask_gpu = None, None, None, False
        self._parents, self._records = self._records, None  # kept: to destroy an event of a GPU is a call of CUDA, which a forked child must not make
        self._words = memoryview(bytearray(8 * WORDS)).cast("q")
        self._words[STEP] = -1
        self.mark = self._ignore  # type: ignore[method-assign]

    def _enter(self, index: int, now: int) -> None:
        """The phase until now gets its time; from now on it is this one."""
        self._turn(index, now)
        self._marks += 1
        self._words[MARKS] = self._marks

    def _turn(self, index: int, now: int) -> None:
        """The same, and no mark."""
        self._spent[self._phase] += now - self._marked
        self._phase = index
        self._marked = now
        self._words[MARKED] = now
        self._words[PHASE] = index

    def _shift(self, index: int) -> None:
        """A wait begins or ends: no mark, and on the host alone, for it may be in another of the GPU's streams."""
        try:
            self._turn(index, self._clock())
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def _add_runtime(self, runtime: RuntimeValues, values: dict[int, float], now: int) -> None:
        """A step is recorded also where these cannot be read."""
        try:
            runtime.take(values, now)
            flops = values.get(self._columns.get("flops", -1))
            if flops is not None:
                runtime.utilise(values, flops, values[_STEP_S])
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def _add_digest(self, name: str, digest_of: Callable[[int, float], Any | None], step_s: float) -> bool:
        """The same. False after an error, when none are to be taken any more: each may have cost a device's time. `digest_of`: step and its seconds → a digest, where one is due."""
        try:
            digest = digest_of(self._step, step_s)
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)
            return False
        if digest is not None:
            self.log(**{name: digest})
        return True

    def _recorded(self, step: int, values: Mapping[int, float]) -> None:
        """A step's record is stored, with what has come from a GPU."""
        place = values.get(self._columns.get(gradient_check.VALUE, -1), 0.0)
        if place and self._replicas is not None:
            self._replicas.tell_gradient(step, place)

    def _compare(self, model: Replicated, replay: Callable[[], Any] | None) -> None:
        if self._ring is None:
            return
        try:
            if self._replicas is not None:
                self._replicas.stop()
            self._replicas = ReplicaChecks(model, replay, self._clock, self._fault)
            self.watch_updates()
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def _replay(self, replicas: ReplicaChecks) -> None:
        """A pause between two steps, without a mark: workers are compared by these. What the script marks and logs meanwhile is of no step. What it raises is the script's: of its signals' handlers."""
        self._shift(_EVALUATION)
        try:
            with replica_checks.quiet(self, ("mark", "log", "batch", "_shift", "before_update")):
                replicas.replay(self._step)
        finally:
            self._shift(_OTHER)

    def _ignore(self, phase: str) -> None:
        """A mark without a ring."""

    def _put(self, column: int, value: Any) -> None:
        if getattr(getattr(value, "device", None), "type", "cpu") == "cpu":
            self._values[column] = float(value)
        else:
            self._values.pop(column, None)
            if self._records is not None:
                self._records.keep(self._step, column, value)

    def _begin_on_gpu(self, now: int) -> None:
        """The step begins on the GPU, too, once the script uses one; from then on marks are made on both."""
        if self._records is None:
            return
        self._ask_gpu = self._records.begin(_DATA, now, self._marks)
        if self._records.on_gpu and "mark" not in self.__dict__:
            self.mark = self._mark_on_gpu  # type: ignore[method-assign]

    def _mark_on_gpu(self, phase: str) -> None:
        """A mark on the host and in the GPU's stream."""
        Monitor.mark(self, phase)
        try:
            if self._records is not None:
                self._records.enter(self._phase, self._marked, self._marks)
        except Exception as error:  # noqa: BLE001 - the probe never raises into the loop
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        if isinstance(error, AcceleratorError):  # a drill, injected while the loop was in here: it is meant for the script
            raise error
        self._words[FAULTS] += 1
        _log.debug("a fault of the probe was swallowed", exc_info=True)


# --- one per process ------------------------------------------------------------------------------------------------


@functools.cache
def monitor() -> Monitor:
    """The process's monitor; made from the environment when it is first asked for. Never raises.

    Also starts the sockets of the probe and the flight recorder, and installs the hooks for uncaught exceptions.
    """
    environment = dict(os.environ)
    for name in _PRIVATE:
        os.environ.pop(name, None)
    time_gpu = environment.get(gpu_phases.VARIABLE) != "0"
    made = Monitor(_ring(environment), skip=steps_of(environment.get("EAGLE_EYE_SKIP_STEPS", "")), time_gpu=time_gpu)
    try:
        made.watch_runtime()
        _connect(made, environment)
    except Exception as error:  # noqa: BLE001 - training goes on without being watched
        _log.warning("eagle-eye: this worker's probe is not connected to its launcher: %r", error)
    return made


def _ring(environment: Mapping[str, str]) -> RingWriter | None:
    path = environment.get("EAGLE_EYE_RING", "")
    if not path:
        _log.debug("no launcher (EAGLE_EYE_RING is not set): nothing is written")
        return None
    try:
        return RingWriter.create(
            path, epoch=int(environment.get("EAGLE_EYE_EPOCH", "0")), worker=environment.get("EAGLE_EYE_WORKER", "")
        )
    except (OSError, ValueError) as error:
        _log.warning("eagle-eye: no ring at %s, this worker is not watched from inside: %r", path, error)
        return None


def steps_of(text: str) -> frozenset[int]:
    """Numbers of steps with commas between them, as EAGLE_EYE_SKIP_STEPS has them."""
    return frozenset(int(word) for word in text.split(",") if word.strip().isdigit())


def _connect(made: Monitor, environment: Mapping[str, str]) -> None:
    os.register_at_fork(after_in_child=made.disable)
    launcher = environment.get("EAGLE_EYE_SOCKET", "")
    worker = environment.get("EAGLE_EYE_WORKER", "")
    epoch = int(environment.get("EAGLE_EYE_EPOCH", "0") or 0)
    if launcher or made.watched:
        exception_reporter.install(exception_reporter.Reporter(made, launcher, worker, epoch))
    path = environment.get("EAGLE_EYE_PROBE_SOCKET", "")
    if path:
        live_flight_recorder.serve(live_flight_recorder.path_beside(path))
        group_progress.begin(group_progress.path_beside(path), environment)
        probe_socket.serve(path, made, messages.TokenVerifier(environment.get("EAGLE_EYE_TOKEN", "")))
    if launcher:
        messages.send(launcher, messages.encode("hello", worker=worker, pid=os.getpid(), epoch=epoch))
