"""The self-healing worker: peers may die, hang, join or slow down; the step ends as if they had not.

A step is: compute the own micro-batches, reduce copies of their gradients, commit by agreement, apply. Whatever
breaks in it leads to the same place: the next epoch's assignment (`EpochAssignment`) say who is left, what was lost and who does
it again. What was finished stays (Unicron, section 6.2): gradients are a sum over micro-batches, and parameters change
only where the step is applied.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from eagle_eye.errors import Broken, Ended, Fenced, FencedOut, Halted, StateTorn
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
        train_state: TrainState, saving: Checkpointing, monitor: Monitor, faults: InjectedFaults, backend: str = "gloo",
        skipped: frozenset[int] = frozenset(), clock: Callable[[], float] = time.monotonic,
        make_ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`make_ready` is called once, before the worker asks to be taken in."""
        self.trained = trained
        self.train_state = train_state
        self._gradients, self._reduction, self._session = gradients, reduction, session
        self._saving, self._monitor, self._faults = saving, monitor, faults
        self._backend, self._skipped, self._clock, self._make_ready = backend, skipped, clock, make_ready
        self._group: ProcessGroup | None = None
        self._assignment: EpochAssignment | None = None
        self._seen = 0
        """The newest epoch whose assignment was taken up."""
        self._phase = "starting"
        self._fresh = True
        self._running: int | None = None
        self._reduced: list[Tensor | None] = [None] * len(gradients.segments)
        self._brought: dict[str, tuple[int, ...]] = {}
        """Worker → micro-batches whose gradients are in the sum that is reduced, or was."""
        self._result: StepResult | None = None
        """Of the step that was applied last, whose number is below."""
        self._tokens: tuple[int, ...] = ()
        """Of its micro-batches."""
        self._applied = -1
        self._again: tuple[int, ...] = ()
        """Micro-batches of the present step that the epoch's beginning has given us to compute."""
        self._recompute_s = 0.0
        self._timings: dict[str, float] = {}
        """Of the newest epoch's beginning, for the launcher's record."""
        self._resumed = True
        self._unsaved = False
        """The last checkpoint could not be written so far."""
        self._gathered = False
        """The state was put where another worker reads it fastest."""
        session.held_state = self._holding

    # --- what the user's loop calls ---------------------------------------------------------------------------------

    def steps(self, until: int) -> Iterator[TrainStep]:
        """Yield the steps still to do, below `until`: from the newest checkpoint, or from where the others are.

        A step that the loop does not run is run when the next one is asked for. Ends also when the job ends. A job
        that cannot go on saves what it has, says why on stderr and exits (SystemExit).
        """
        try:
            self._make_ready()
            self._begin()
            while self.step < until:
                number = self.step
                self._monitor.begin(number)
                step = TrainStep(number, self._train_or_end)
                yield step
                step.run()
                self._monitor.end()
                if self.step < until:
                    self._saving.after(self.train_state, self.rank)
            self._saving.last(self.train_state, self.rank, self._say_saving)
            self._session.send("leave", epoch=self._seen, step=self.step, reason="done")
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
        """In the present epoch; -1 before the first."""
        return self._assignment.rank if self._assignment is not None else -1

    # --- a step -----------------------------------------------------------------------------------------------------

    def _train_or_end(self, number: int) -> StepResult:
        """`run` is called in the user's loop, not in `steps`: what ends this worker has to end it from there, too."""
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
                self._one(number)
            except (Fenced, Broken) as error:
                self._after(error)
            except FencedOut as error:
                self._enter_again(error)
        if self._result is None:
            raise RuntimeError(f"step {number} was left behind without a result")
        if self._applied != number:  # the others did it while we were left behind: our state came from them
            return replace(self._result, tokens=0, micro_batches={})
        return replace(self._result, own_tokens=sum(self._tokens[each] for each in self._credited()))

    def _one(self, number: int) -> None:
        assignment = self._assignment
        if assignment is None:
            raise RuntimeError("a step is run in an epoch")
        self._compute(assignment, number)
        group = self._formed(assignment)
        self._enter_phase("reducing")
        self._faults.at("reducing", number)
        self._monitor.mark("communication")
        self._session.check(group.epoch)
        self._brought = dict(zip(assignment.workers, assignment.current, strict=True))
        self._reduction.reduce(group, self._gradients, assignment.current, self._reduced)
        self._monitor.mark("other")  # whoever hangs between two collectives is not one of those who wait for it
        self._faults.at("committing", number)
        if not self._session.may_commit(group.epoch):
            raise Fenced(self._session.fenced_epoch)
        self._monitor.mark("communication")
        soft = commit(group, number, self._session.soft_epoch)
        self._faults.at("applying", number)
        self._apply(group.epoch)
        self._say_resumed(group.epoch, number)
        if soft > group.epoch:
            self._session.answer_soft_fence(self._holding())
            self._take_part()

    def _compute(self, assignment: EpochAssignment, number: int) -> None:
        self._enter_phase("computing")
        ours = [each for each in assignment.current[assignment.rank] if each not in self._gradients.done]
        for micro_batch in ours:
            self._session.check(assignment.epoch)
            overlapped = micro_batch == ours[-1] and number not in self._skipped
            group = self._formed(assignment) if overlapped else None
            began = self._clock()
            if group is not None:
                with self._reduction.overlap(group, self._gradients):
                    self._micro_batch(number, micro_batch)
            else:
                self._micro_batch(number, micro_batch)
            self._faults.at("computing", number)
            if micro_batch in self._again:
                self._recompute_s += self._clock() - began

    def _micro_batch(self, number: int, micro_batch: int) -> None:
        """Forward and backward; a step that is to be skipped brings in nothing."""
        self._running = micro_batch
        self._gradients.begin(micro_batch)
        self._monitor.mark("forward")
        loss, tokens = (0.0, 0) if number in self._skipped else self.trained.run(number, micro_batch)
        self._gradients.finish(micro_batch, loss, tokens)
        self._running = None

    def _apply(self, epoch: int) -> None:
        """Make the step's update; every worker that gets here holds the same sum."""
        self._enter_phase("applying")
        self._monitor.mark("optimizer")
        gradient, stats = self._gradients.mean_gradient(self._reduced)
        if self.step not in self._skipped:
            self.trained.apply(gradient)
        self._result, self._applied = StepResult(stats.loss, stats.tokens, 0, epoch, self._brought), self.step
        self._tokens = stats.counts
        with self._session.lock:
            self.train_state.step += 1
            self._forget_step()
            if self._assignment is not None and self._assignment.step < self.step:  # else they are about the step after this one
                self._assignment = self._assignment.after_first_step()
        self._gather()

    def _gather(self) -> None:
        """Once the optimizer has made its state. In the background: it takes as long as to copy it."""
        if not self._gathered:
            self._gathered = True
            tensors = [entry.tensor for layer in self.train_state.layers for entry in layer.entries]
            worker_threads().run(lambda: huge_pages.gather(tensors))

    def _credited(self) -> list[int]:
        """Micro-batches of the step that we did last whose tokens we tell; those of workers that are gone by now tells rank 0."""
        assignment = self._assignment
        if assignment is None:
            return []
        mine = list(self._brought.get(assignment.workers[assignment.rank], ()))
        gone = [done for worker, done in self._brought.items() if worker not in assignment.workers] if assignment.rank == 0 else []
        return [*mine, *(each for done in gone for each in done)]

    def _forget_step(self) -> None:
        self._gradients.clear()
        self._reduced = [None] * len(self._gradients.segments)
        self._running = None
        self._phase = "idle"

    # --- from epoch to epoch ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Ask to be taken in, with nothing in hand."""
        self._session.join(
            epoch=self._seen, step=0, micro_batches=self._gradients.total,
            segments=len(self._gradients.segments), layers=self.train_state.bytes_per_layer, fresh=True,
        )  # fmt: skip
        self._take_part()

    def _after(self, error: Exception) -> None:
        """The group is of no use any more; the next epoch's assignment is needed."""
        self._tell_broken(error)
        self._take_part()

    def _enter_again(self, error: FencedOut) -> None:
        """We were left behind, and are alive: what we hold is worth nothing, our hands are."""
        _log.warning("this worker was left behind (%s); it asks to be taken in again", error)
        self._session.use_group(None)
        with self._session.lock:
            self._fresh = True
            self._forget_step()
            self.train_state.step, self._phase = 0, "starting"
        self._begin()

    def _take_part(self) -> None:
        """Until we are in the group of the newest epoch, with whole state."""
        self._monitor.mark("communication")
        while True:
            try:
                waiting = self._clock()
                assignment = self._session.next_assignment(above=self._seen)
                self._seen = assignment.epoch
                self._monitor.mark("communication")  # shows that we have heard it
                self._join(assignment, self._clock() - waiting)
            except (Fenced, Broken) as error:
                self._tell_broken(error)
            except FencedOut as error:
                self._enter_again(error)
                return
            else:
                return

    def _tell_broken(self, error: Exception) -> None:
        """Also of state that arrived torn, whatever has happened since: its sender must not send it again."""
        sender, layers = "", tuple[int, ...]()
        if isinstance(error, StateTorn) and self._assignment is not None:
            sender, layers = self._assignment.workers[error.sender], error.layers
        if sender or (isinstance(error, Broken) and self._session.fenced_epoch <= self._seen):
            self._session.send("broken", epoch=self._seen, error=str(error)[:500], sender=sender, layers=layers)

    def _join(self, assignment: EpochAssignment, waited_s: float) -> None:
        """Take up an epoch's assignment. The group waits until somebody needs it: who has work left does that meanwhile."""
        before = self._to_do()
        self._faults.at("joining" if self._fresh else "regrouping", self.step)
        self._session.use_group(None)
        self._group, self._assignment = None, assignment
        self._monitor.go_on(assignment.epoch)
        self._timings = {"waited_s": waited_s, "state_s": 0.0, "bytes": 0}
        if any(taker == assignment.rank for _, taker, _ in assignment.moves):
            self._fresh = True  # also one that was far behind: until all has come its state is nobody's
        if assignment.finish or assignment.moves:
            self._form(assignment)
        began = self._clock()
        self._catch_up(assignment)
        self._move(assignment)
        self._timings["state_s"] = self._clock() - began
        self._again = self._given_anew(assignment, before)
        self._recompute_s, self._resumed = 0.0, False
        if self._group is not None:
            self._session.send("joined", epoch=assignment.epoch, timings=self._timings)

    def _form(self, assignment: EpochAssignment) -> ProcessGroup:
        """Meet the others. Whoever comes last waits for nobody, so the shortest time of all is what forming costs."""
        began = self._clock()
        self._group = group = form(self._session, assignment, self._backend)
        self._session.use_group(group)
        self._timings["group_s"] = self._clock() - began
        return group

    def _formed(self, assignment: EpochAssignment) -> ProcessGroup:
        """The epoch's group, made now if nobody needed it before."""
        group = self._group
        if group is None:
            self._monitor.mark("communication")
            group = self._form(assignment)
            self._session.send("joined", epoch=assignment.epoch, timings=self._timings)
        return group

    def _catch_up(self, assignment: EpochAssignment) -> None:
        """Apply the step that all members hold the sum of, if that is where the job stands."""
        if not self._fresh and self._whole and assignment.step > self.step:
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
    def _whole(self) -> bool:
        return all(segment is not None for segment in self._reduced)

    def _move(self, assignment: EpochAssignment) -> None:
        """State goes from those who have it to those who have not."""
        if assignment.source == "checkpoint" and (assignment.rank == 0 or not assignment.moves):
            self._saving.load(self.train_state)
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

    def _given_anew(self, assignment: EpochAssignment, before: frozenset[int]) -> tuple[int, ...]:
        """Micro-batches of the step in flight that were another worker's; `before`: those that were ours to do."""
        ours = (self._assignment or assignment).current[assignment.rank]
        if not self._gradients.done <= set(ours):
            self._gradients.clear()  # another brings in a part of it, too, and a sum cannot be taken apart
        begun = before or self._gradients.done
        return tuple(each for each in ours if each not in before and each not in self._gradients.done) if begun else ()

    def _to_do(self) -> frozenset[int]:
        """What is ours of the step in flight, if there is one."""
        if self._assignment is None or self._phase == "idle" or self._fresh:
            return frozenset()
        return frozenset(self._assignment.current[self._assignment.rank])

    # --- small things -----------------------------------------------------------------------------------------------

    def _enter_phase(self, phase: str) -> None:
        with self._session.lock:
            self._phase = phase

    def _holding(self) -> HeldState:
        """What we hold at this moment; called under the session's lock, also by its thread."""
        running = () if self._running is None else (self._running,)
        return HeldState(
            step=self.step,
            done=tuple(sorted({*self._gradients.done, *running})),
            segments=tuple(index for index, segment in enumerate(self._reduced) if segment is not None),
            phase=self._phase,
            fresh=self._fresh or not self.train_state.is_complete,
        )

    def _say_resumed(self, epoch: int, number: int) -> None:
        if not self._resumed:
            self._resumed = True
            self._session.send(
                "resumed", epoch=epoch, step=number, recompute_s=self._recompute_s, recomputed=list(self._again)
            )

    def _halt(self, halt: Halted) -> NoReturn:
        _say(f"the job stops: {halt}")
        if halt.saves and not self._fresh and self.train_state.is_complete:
            saved = self._saving.keep(self.train_state, self._say_saving)
            _say(f"the state before step {self.step} was saved to {saved}")
        self._session.send("leave", epoch=self._seen, step=self.step, reason=str(halt))
        raise SystemExit(halt.code)

    def _say_saving(self, why: str, path: str) -> None:
        """How it stands with the last checkpoint; a person has to hear what keeps it from being written."""
        if why and not self._unsaved:
            _say(why)
        self._unsaved = bool(why)
        self._session.send("saving", epoch=self._seen, step=self.step, why=why, path=path)


def _say(words: str) -> None:
    """To whoever reads what the script says."""
    print(f"eagle-eye: {words}", file=sys.stderr, flush=True)  # noqa: T201 - the script's last words
