"""The elastic worker: peers may die, hang, join or slow down; the step ends as if they had not.

A step is: compute the own micro-batches, reduce copies of their gradients, commit by agreement, apply. After any failure
in it the worker waits for the next epoch's assignment (`EpochAssignment`), which says who is left, what was lost and who
computes it again. What was finished is kept (Unicron, section 6.2): gradients are a sum over micro-batches, and parameters
change only where the step is applied.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from eagle_eye.errors import Broken, Ended, Fenced, FencedOut, Halted, StateCorrupted
from eagle_eye.training.probe import Monitor

from .checkpointing import Checkpointing
from .epoch_protocol import EpochAssignment, HeldState
from .fault_injection import InjectedFaults
from .model import Trainable
from .process_group.process_group import ProcessGroup, form
from .reduce.gradients import Gradients
from .reduce.reduction import Reduction
from .reduce.resume_reduction import resume_reduction
from .step import StepResult, TrainStep, commit
from .train_state import huge_pages
from .train_state.train_state import TrainState
from .transfer.state_transfer import transfer_state
from .worker_threads import worker_threads

if TYPE_CHECKING:
    from torch import Tensor

    from .launcher_session import LauncherSession
    from .local_session import LocalSession

_log = logging.getLogger("eagle_eye.elastic")


class ElasticWorker:
    """One worker of an elastic job; made by `eagle_eye.elastic`."""

    def __init__(
        self, trained: Trainable, gradients: Gradients, reduction: Reduction, session: "LauncherSession | LocalSession", *,
        train_state: TrainState, checkpointing: Checkpointing, monitor: Monitor, faults: InjectedFaults, backend: str = "gloo",
        skipped: frozenset[int] = frozenset(), clock: Callable[[], float] = time.monotonic,
        warm_up: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`warm_up` is called once, before the worker asks to join."""
        self.trained = trained
        self.train_state = train_state
        self._gradients, self._reduction, self._session = gradients, reduction, session
        self._checkpointing, self._monitor, self._faults = checkpointing, monitor, faults
        self._backend, self._skipped, self._clock, self._warm_up = backend, skipped, clock, warm_up
        self._group: ProcessGroup | None = None
        self._assignment: EpochAssignment | None = None
        self._epoch = 0
        """The newest epoch whose assignment was received."""
        self._phase = "starting"
        self._fresh = True
        self._running: int | None = None
        self._reduced: list[Tensor | None] = [None] * len(gradients.segments)
        self._contributed: dict[str, tuple[int, ...]] = {}
        """Worker → micro-batches whose gradients are in the sum that is reduced now, or was reduced last."""
        self._result: StepResult | None = None
        """Of the step that was applied last."""
        self._tokens: tuple[int, ...] = ()
        """Of the micro-batches of that step."""
        self._applied = -1
        """Number of that step."""
        self._reassigned: tuple[int, ...] = ()
        """Micro-batches of the step in flight that this epoch's assignment gave us in place of another worker."""
        self._recompute_s = 0.0
        self._timings: dict[str, float] = {}
        """Seconds and bytes of the start of the newest epoch, for the launcher's record."""
        self._resumed = True
        self._save_failed = False
        """The last checkpoint could not be written so far."""
        self._on_huge_pages = False
        """The state was put on huge pages, where another worker reads it fastest."""
        session.held_state = self._held_state

    # --- what the user's loop calls ---------------------------------------------------------------------------------

    def steps(self, until: int) -> Iterator[TrainStep]:
        """Yield the steps still to do, below `until`: from the newest checkpoint, or from the step of the other workers.

        Called by the user's loop. A step that the loop does not run is run when the next one is asked for. Ends also when
        the job ends. If the launcher stops the job, the worker saves a checkpoint, prints the reason on stderr and raises
        SystemExit with the launcher's exit code. Raises LauncherLost if the launcher is gone and a new epoch is needed.
        """
        try:
            self._warm_up()
            self._join_job()
            while self.step < until:
                number = self.step
                self._monitor.begin(number)
                step = TrainStep(number, self._train_or_end)
                yield step
                step.run()
                self._monitor.end()
                self._monitor.mark("checkpoint")
                if self.step < until:
                    self._checkpointing.after_step(self.train_state, self.rank)
            self._checkpointing.save_last(self.train_state, self.rank, self._report_saving)
            self._session.send("leave", epoch=self._epoch, step=self.step, reason="done")
        except Ended as end:
            _log.info("the job has ended: %s", end)
        except Halted as halt:
            self._halt(halt)
        finally:
            self._monitor.stop()
            self._session.close()

    @property
    def step(self) -> int:
        """The first step still to do."""
        return self.train_state.step

    @property
    def rank(self) -> int:
        """In the current epoch; -1 before the first."""
        return self._assignment.rank if self._assignment is not None else -1

    # --- a step -----------------------------------------------------------------------------------------------------

    def _train_or_end(self, number: int) -> StepResult:
        """What `TrainStep.run` calls, in the user's loop and not in `steps`: SystemExit ends the worker from there, too."""
        try:
            return self._train(number)
        except Halted as halt:
            self._halt(halt)
        except Ended as end:
            _log.info("the job has ended: %s", end)
            raise SystemExit(0) from end

    def _train(self, number: int) -> StepResult:
        while self.step == number:
            try:
                self._attempt(number)
            except (Fenced, Broken) as error:
                self._recover(error)
            except FencedOut as error:
                self._rejoin(error)
        if self._result is None:
            raise RuntimeError(f"step {number} was passed over without a result")
        if self._applied != number:  # the others did it while we were fenced out: our state came from them
            return replace(self._result, tokens=0, micro_batches={})
        return replace(self._result, own_tokens=sum(self._tokens[each] for each in self._credited()))

    def _attempt(self, number: int) -> None:
        assignment = self._assignment
        if assignment is None:
            raise RuntimeError("a step needs an epoch: `steps` was not called")
        self._compute(assignment, number)
        group = self._formed_group(assignment)
        self._enter_phase("reducing")
        self._faults.at("reducing", number)
        self._monitor.mark("communication")
        self._session.check(group.epoch)
        self._contributed = dict(zip(assignment.workers, assignment.current, strict=True))
        self._reduction.reduce(group, self._gradients, assignment.current, self._reduced)
        self._monitor.mark("other")  # a worker that hangs between two collectives must not look like those that wait for it
        self._faults.at("committing", number)
        if not self._session.may_commit(group.epoch):
            raise Fenced(self._session.fenced_epoch)
        self._monitor.mark("communication")
        soft_epoch = commit(group, number, self._session.soft_epoch)
        self._faults.at("applying", number)
        self._apply(group.epoch)
        self._report_resumed(group.epoch, number)
        if soft_epoch > group.epoch:
            self._session.answer_soft_fence(self._held_state())
            self._join_epoch()

    def _compute(self, assignment: EpochAssignment, number: int) -> None:
        self._enter_phase("computing")
        ours = [each for each in assignment.current[assignment.rank] if each not in self._gradients.done]
        for micro_batch in ours:
            self._session.check(assignment.epoch)
            overlapped = micro_batch == ours[-1] and number not in self._skipped
            group = self._formed_group(assignment) if overlapped else None
            began = self._clock()
            if group is not None:
                with self._reduction.overlap(group, self._gradients):
                    self._micro_batch(number, micro_batch)
            else:
                self._micro_batch(number, micro_batch)
            self._faults.at("computing", number)
            if micro_batch in self._reassigned:
                self._recompute_s += self._clock() - began

    def _micro_batch(self, number: int, micro_batch: int) -> None:
        """Forward and backward; in a step that is to be skipped a micro-batch contributes zeros."""
        self._running = micro_batch
        self._gradients.begin(micro_batch)
        self._monitor.mark("forward")
        loss, tokens = (0.0, 0) if number in self._skipped else self._run(number, micro_batch)
        self._gradients.finish(micro_batch, loss, tokens)
        self._running = None

    def _run(self, number: int, micro_batch: int) -> tuple[float, int]:
        try:
            return self.trained.run(number, micro_batch)
        except Exception as error:
            error.add_note(f"in step {number}, micro-batch {micro_batch}")
            raise

    def _apply(self, epoch: int) -> None:
        """Update the parameters; every worker that gets here holds the same mean gradient."""
        self._enter_phase("applying")
        self._monitor.mark("optimizer")
        gradient, stats = self._gradients.mean_gradient(self._reduced)
        if self.step not in self._skipped:
            self.trained.apply(gradient)
        self._result, self._applied = StepResult(stats.loss, stats.tokens, 0, epoch, self._contributed), self.step
        self._tokens = stats.counts
        with self._session.lock:
            self.train_state.step += 1
            self._forget_step()
            if self._assignment is not None and self._assignment.step < self.step:  # else it is about the step after this one
                self._assignment = self._assignment.after_first_step()
        self._use_huge_pages()

    def _use_huge_pages(self) -> None:
        """Move the state to huge pages, once the optimizer has made its own. In the background: it takes as long as a copy."""
        if not self._on_huge_pages:
            self._on_huge_pages = True
            tensors = [entry.tensor for layer in self.train_state.layers for entry in layer.entries]
            with contextlib.suppress(RuntimeError):  # no further thread may be started (a limit of the container): it is read slower
                worker_threads().run(lambda: huge_pages.collapse(tensors))

    def _credited(self) -> list[int]:
        """Micro-batches of the last step whose tokens this worker reports; rank 0 reports those of workers that are gone, too."""
        assignment = self._assignment
        if assignment is None:
            return []
        mine = list(self._contributed.get(assignment.workers[assignment.rank], ()))
        gone = [done for worker, done in self._contributed.items() if worker not in assignment.workers] if assignment.rank == 0 else []
        return [*mine, *(each for done in gone for each in done)]

    def _forget_step(self) -> None:
        self._gradients.clear()
        self._reduced = [None] * len(self._gradients.segments)
        self._running = None
        self._phase = "idle"

    # --- from epoch to epoch ----------------------------------------------------------------------------------------

    def _join_job(self) -> None:
        """Ask to join, without state or gradients, and wait for the first epoch."""
        self._session.join(
            epoch=self._epoch, step=0, micro_batches=self._gradients.total,
            segments=len(self._gradients.segments), layers=self.train_state.bytes_per_layer, fresh=True,
        )  # fmt: skip
        self._join_epoch()

    def _recover(self, error: Exception) -> None:
        """The group of this epoch has failed: wait for the next epoch."""
        self._report_broken(error)
        self._join_epoch()

    def _rejoin(self, error: FencedOut) -> None:
        """This worker was fenced out of the job but is alive: it drops its state and gradients, and joins again."""
        _log.warning("this worker was fenced out of the job (%s): it joins again, without its state", error)
        self._session.use_group(None)
        self._checkpointing.fenced_out()
        with self._session.lock:
            self._fresh = True
            self._forget_step()
            self.train_state.step, self._phase = 0, "starting"
        self._join_job()

    def _join_epoch(self) -> None:
        """Block until this worker has started the newest epoch, with complete state."""
        self._monitor.mark("communication")
        while True:
            try:
                waiting = self._clock()
                assignment = self._session.next_assignment(above=self._epoch)
                self._epoch = assignment.epoch
                self._monitor.mark("communication")  # a sign of life: the assignment is here
                self._start_epoch(assignment, self._clock() - waiting)
            except (Fenced, Broken) as error:
                self._report_broken(error)
            except FencedOut as error:
                self._rejoin(error)
                return
            else:
                return

    def _report_broken(self, error: Exception) -> None:
        """Report a failed collective, unless a newer epoch explains it; and corrupted state always: its sender must not send it again."""
        sender, layers = "", tuple[int, ...]()
        if isinstance(error, StateCorrupted) and self._assignment is not None:
            sender, layers = self._assignment.workers[error.sender], error.layers
        if sender or (isinstance(error, Broken) and self._session.fenced_epoch <= self._epoch):
            self._session.send("broken", epoch=self._epoch, error=str(error)[:500], sender=sender, layers=layers)

    def _start_epoch(self, assignment: EpochAssignment, waited_s: float) -> None:
        """Start an epoch. Its group is formed when it is first needed: a worker with micro-batches left computes them meanwhile."""
        before = self._own_micro_batches()
        self._faults.at("joining" if self._fresh else "regrouping", self.step)
        self._session.use_group(None)
        self._checkpointing.begin_epoch(assignment)
        self._group, self._assignment = None, assignment
        self._monitor.set_epoch(assignment.epoch)
        self._timings = {"waited_s": waited_s, "state_s": 0.0, "bytes": 0}
        if any(receiver == assignment.rank for _, receiver, _ in assignment.moves):
            self._fresh = True  # also a worker that was far behind: its state is incomplete until everything has arrived
        if assignment.finish or assignment.moves:
            self._form(assignment)
        began = self._clock()
        self._finish_reduced_step(assignment)
        self._receive_state(assignment)
        self._timings["state_s"] = self._clock() - began
        self._reassigned = self._reassigned_to_us(assignment, before)
        self._recompute_s, self._resumed = 0.0, False
        if self._group is not None:
            self._session.send("joined", epoch=assignment.epoch, timings=self._timings)

    def _form(self, assignment: EpochAssignment) -> ProcessGroup:
        """Form the group. The last worker to arrive waits for no other, so the shortest time of all is the cost of forming."""
        began = self._clock()
        self._group = group = form(self._session, assignment, self._backend)
        self._session.use_group(group)
        self._timings["group_s"] = self._clock() - began
        return group

    def _formed_group(self, assignment: EpochAssignment) -> ProcessGroup:
        """The group of the epoch, formed now if it was not needed before."""
        group = self._group
        if group is None:
            self._monitor.mark("communication")
            group = self._form(assignment)
            self._session.send("joined", epoch=assignment.epoch, timings=self._timings)
        return group

    def _finish_reduced_step(self, assignment: EpochAssignment) -> None:
        """Apply the step in flight where its reduced gradient exists: held here as a whole, or completed from the other workers."""
        if not self._fresh and self._is_reduced and assignment.step > self.step:
            self._apply(assignment.epoch)
        if not assignment.finish or self._group is None:
            return
        applied = self.step > assignment.step  # the commit that we were in when the epoch began had succeeded
        resume_reduction(self._group, self._gradients, assignment.finish, self._reduced, needs_none=self._fresh or applied)
        if self._fresh or applied:
            self._assignment = assignment.after_first_step()
        else:
            self._apply(assignment.epoch)

    @property
    def _is_reduced(self) -> bool:
        return all(segment is not None for segment in self._reduced)

    def _receive_state(self, assignment: EpochAssignment) -> None:
        """Load the checkpoint, or transfer state between workers, as the assignment says."""
        if self._fresh:
            self._checkpointing.before_transfer()
        if assignment.source == "checkpoint" and (assignment.rank == 0 or not assignment.moves):
            self._checkpointing.load(self.train_state, for_all=bool(assignment.moves) or assignment.world == 1)
            self._timings["loaded_step"] = self.train_state.step
        if self._group is not None:
            moved = transfer_state(self._group, self._session, self.train_state, assignment.moves, assignment.rank)
            self._timings["bytes"] = moved.bytes
        if self._fresh:
            self.trained.refresh()
            self.train_state.drop_preallocated()
            with self._session.lock:
                self._fresh = False
                self._forget_step()

    def _reassigned_to_us(self, assignment: EpochAssignment, before: frozenset[int]) -> tuple[int, ...]:
        """Micro-batches of the step in flight that were another worker's before; `before`: those that were ours."""
        ours = (self._assignment or assignment).current[assignment.rank]
        if not self._gradients.done <= set(ours):
            self._gradients.clear()  # another worker contributes a part of it, too, and a sum cannot be split
        begun = before or self._gradients.done
        return tuple(each for each in ours if each not in before and each not in self._gradients.done) if begun else ()

    def _own_micro_batches(self) -> frozenset[int]:
        """The micro-batches of the step in flight that are assigned to this worker; none without such a step."""
        if self._assignment is None or self._phase == "idle" or self._fresh:
            return frozenset()
        return frozenset(self._assignment.current[self._assignment.rank])

    # --- reports to the launcher and the user ---------------------------------------------------------------------------

    def _enter_phase(self, phase: str) -> None:
        with self._session.lock:
            self._phase = phase

    def _held_state(self) -> HeldState:
        """What this worker holds at this moment; called under the session's lock, also by its thread."""
        running = () if self._running is None else (self._running,)
        return HeldState(
            step=self.step,
            done=tuple(sorted({*self._gradients.done, *running})),
            segments=tuple(index for index, segment in enumerate(self._reduced) if segment is not None),
            phase=self._phase,
            fresh=self._fresh or not self.train_state.is_complete,
        )

    def _report_resumed(self, epoch: int, number: int) -> None:
        if not self._resumed:
            self._resumed = True
            self._session.send(
                "resumed", epoch=epoch, step=number, recompute_s=self._recompute_s, recomputed=list(self._reassigned)
            )

    def _halt(self, halt: Halted) -> NoReturn:
        _print(f"the job stops: {halt}")
        if halt.saves and not self._fresh and self.train_state.is_complete:
            self._monitor.mark("checkpoint")
            saved = self._checkpointing.save_now(self.train_state, self._report_saving)
            _print(f"the state before step {self.step} was saved to {saved}")
        self._session.send("leave", epoch=self._epoch, step=self.step, reason=str(halt))
        raise SystemExit(halt.code)

    def _report_saving(self, why: str, path: str) -> None:
        """Report the last checkpoint to the launcher, and print what keeps it from being written, once."""
        if why and not self._save_failed:
            _print(why)
        self._save_failed = bool(why)
        self._session.send("saving", epoch=self._epoch, step=self.step, why=why, path=path)


def _print(text: str) -> None:
    """A line on the script's stderr, for the user."""
    print(f"eagle-eye: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the user must see it
