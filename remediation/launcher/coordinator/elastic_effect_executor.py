"""Carries out the coordinator's effects on elastic workers, and brings it what they report. The part of `EffectExecutor` for them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.config import StallConfig
from eagle_eye.errors import EagleEyeError, PermanentError, TemporaryError
from eagle_eye.rpc.control_messages import Body, Command
from eagle_eye.types import Layout, PrecomputedPlan, Transition, WorkerStateReport
from remediation.launcher.event_log import EventLog
from remediation.launcher.worker.stall_detector import NodeReport, StallDetector
from remediation.launcher.worker.worker_environment import StoreAddress

from .coordinator import Coordinator
from .coordinator_effects import DismissWorker, Effect, ExcludeWorker, ForkWorkers, HaltWorkers, Prepare, RegroupWorkers
from .coordinator_facts import LateFailure, WorkerDied
from .quorum import Electorate, electorate_of
from .rendezvous_store import RendezvousStore
from .worker_registry import JoinRequest

log = logging.getLogger(__name__)

ELASTIC_REPORTS = frozenset({"entered", "held", "broken", "joined", "resumed", "saving", "leave", "exited", "abandoned", "no_progress"})
"""Facts about elastic workers that launchers report."""
COMMANDS = frozenset({"rebalance", "resize", "event_table"})
NO_STORE = StoreAddress(host="127.0.0.1", port=0, served=False)


class Executor(Protocol):
    """What `EffectExecutor` does for us."""

    coordinator: Coordinator

    def do(self, effects: list[Effect]) -> None: ...
    def go(self, work: Coroutine[Any, Any, None]) -> None: ...
    async def send(self, node: str, action: str, arguments: Body, epoch: int = 0) -> Body: ...
    async def quietly(self, node: str, action: str, arguments: Body) -> None: ...
    async def answered(self, request: Callable[[str], list[Effect]]) -> Body: ...


class ElasticEffectExecutor:
    """One launcher's time as coordinator of elastic workers."""

    def __init__(
        self, driver: Executor, event_log: EventLog, clock: Clock, stall: StallConfig, told_leader: Callable[[Layout, int], Awaitable[None]]
    ) -> None:
        """`told_leader`: reports a layout to the server."""
        self._driver = driver
        self._event_log = event_log
        self.store = RendezvousStore(clock)
        self._told_leader = told_leader
        self._stall_detector = StallDetector(clock, stall)
        self._regrouped = asyncio.Event()
        self._regrouped.set()
        self.torch_store = NO_STORE
        """The store of the last epoch that was begun with new processes."""

    # --- facts in ---------------------------------------------------------------------------------------------------

    def report(self, kind: str, body: Body) -> None:
        """A launcher reports about its elastic workers."""
        self._driver.do(self._saving(body) if kind == "saving" else self._effects(kind, body))

    def _effects(self, kind: str, body: Body) -> list[Effect]:
        state, epoch = self._driver.coordinator, int(body.get("epoch", 0))
        worker = str(body.get("worker", ""))
        if kind == "entered":
            return state.entered(msgspec.convert(body["join_request"], JoinRequest))
        if kind == "held":
            holdings = msgspec.convert(body["holdings"], tuple[WorkerStateReport, ...])
            return state.held(epoch, holdings, tuple(body.get("silent", ())))
        if kind == "broken":
            return state.broken(worker, epoch, str(body.get("sender", "")), tuple(int(layer) for layer in body.get("layers", ())))
        if kind == "joined":
            return state.regrouped(worker, epoch, dict(body.get("timings", {})))
        if kind == "resumed":
            numbers = tuple(int(number) for number in body.get("recomputed", ()))
            return state.resumed(worker, epoch, float(body.get("recompute_s", 0.0)), numbers)
        if kind == "leave":
            return state.leaving(worker, epoch)
        if kind == "exited":
            return state.exited(worker, int(body.get("pid", 0)))
        if kind == "abandoned":
            return self.death(body)
        view = msgspec.convert(body["view"], NodeReport)
        culprits = self._stall_detector.culprits(str(body["node"]), view, state.serving)
        if culprits:
            return state.stalled(epoch, culprits)
        return state.stuck(epoch) if self._stall_detector.stuck(state.serving, state.stuck_count) else []

    def _saving(self, body: Body) -> list[Effect]:
        words = {name: str(body.get(name, "")) for name in ("why", "path")}
        return self._driver.coordinator.saving(str(body["worker"]), int(body.get("step", 0)), **words)

    def death(self, body: Body) -> list[Effect]:
        """A worker died, elastic or not."""
        return self._driver.coordinator.learn(msgspec.convert({name: body[name] for name in body if name != "lasting"}, WorkerDied))

    def late_failure(self, body: Body) -> list[Effect]:
        """A worker had failed before its end was ordered."""
        return self._driver.coordinator.learn(msgspec.convert({name: body[name] for name in body if name != "lasting"}, LateFailure))

    # --- effects out --------------------------------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        """In the background."""
        go, quietly = self._driver.go, self._driver.quietly
        match effect:
            case Prepare():
                for node in effect.nodes:
                    go(self._fence(node, effect))
            case RegroupWorkers():
                go(self._regroup(effect))
            case ForkWorkers():  # it competes with the living for the processor: they first
                go(self._fork(effect))
            case ExcludeWorker():
                go(quietly(effect.node, "exclude", {"worker": effect.worker, "reason": effect.reason, "proved": effect.proved}))
            case DismissWorker():
                go(quietly(effect.node, "dismiss", {"worker": effect.worker, "reason": effect.reason}))
            case HaltWorkers():
                words = {"epoch": effect.epoch, "reason": effect.reason, "code": effect.code, "saver": effect.saver}
                for node in effect.nodes:
                    go(quietly(node, "halt_workers", words))

    async def _fence(self, node: str, effect: Prepare) -> None:
        epoch = effect.layout.epoch
        arguments = {
            "asked": electorate_of(effect.layout, effect.ballot), "given_up": list(effect.given_up), "soft": list(effect.soft),
            "workers": list(effect.layout.workers),
        }  # fmt: skip
        try:
            answer = await self._driver.send(node, "fence", arguments)
        except EagleEyeError as error:
            log.warning("%s does not vote for epoch %d: %s", node, epoch, error)
            return  # its session's end, or the deadline, decides
        state = self._driver.coordinator
        self._driver.do(voted(state, node, epoch, answer))

    async def _regroup(self, effect: RegroupWorkers) -> None:
        self._regrouped.clear()
        try:
            await self._bring(effect)
        finally:
            self._regrouped.set()

    async def _bring(self, effect: RegroupWorkers) -> None:
        layout = effect.layout
        self.store.begin(layout.epoch)
        arguments = {"layout": layout, "ballot": effect.ballot, "words": transition_body(effect.transition), "leaving": list(effect.leaving)}
        sending = [asyncio.ensure_future(self._driver.send(node, "regroup", arguments)) for node in effect.nodes]
        await asyncio.sleep(0)  # the assignments are on their way before anything is written down
        self._event_log.layout(layout)
        self._driver.go(self._tell_leader(layout, effect.budget_left))
        results = await asyncio.gather(*sending, return_exceptions=True)
        for node, result in zip(effect.nodes, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, EagleEyeError):
                raise result
            if isinstance(result, EagleEyeError) and node in layout.nodes:  # it is lost, or back soon: both will be known
                log.warning("%s does not take part in epoch %d: %s", node, layout.epoch, result)
        self._driver.do(self._driver.coordinator.started(layout.epoch))

    async def _tell_leader(self, layout: Layout, budget_left: int) -> None:
        await self._told_leader(layout, budget_left)

    async def _fork(self, effect: ForkWorkers) -> None:
        await self._regrouped.wait()
        state = self._driver.coordinator
        limit = state.budget.rule.limit
        arguments = {"layout": effect.layout, "slots": list(effect.slots), "store": self.torch_store, "max_restarts": limit}
        try:
            await self._driver.send(effect.node, "fork", arguments)
        except EagleEyeError as error:
            log.warning("%s starts no new workers: %s", effect.node, error)
            workers = [state.registry.name(effect.node, slot) for slot in effect.slots]
            if isinstance(error, TemporaryError):  # it was not reached: when it is back it is asked again
                state.registry.not_asked(workers)
                return
            for worker in workers:
                self._driver.do(state.learn(WorkerDied(epoch=state.epoch, worker=worker)))

    # --- commands -----------------------------------------------------------------------------------------------------

    async def command(self, command: Command) -> Body:
        """`rebalance`, `resize` and `event_table`. Raises PermanentError."""
        state, given = self._driver.coordinator, command.arguments
        try:
            if command.action == "event_table":
                state.keep_plans(msgspec.convert(given["plans"], tuple[PrecomputedPlan, ...]))
                return {"kept": len(state.precomputed)}
            if command.action == "rebalance":
                shares = {str(worker): float(share) for worker, share in dict(given["shares"]).items()}
                return await self._driver.answered(lambda key: state.rebalance(key, shares, command.plan))
            sizes = {str(node): int(count) for node, count in dict(given["workers"]).items()}
            return await self._driver.answered(lambda key: state.resize(key, sizes, command.plan))
        except (KeyError, TypeError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise PermanentError(
                f"{command.action} was not understood ({error!r}): rebalance takes shares (worker → number), resize workers "
                "(node → count), the event table"
            ) from error

    @property
    def status(self) -> Body:
        """Of the elastic workers."""
        state = self._driver.coordinator
        join_request = next(iter(state.registry.entered.values()), None)
        transition = state.transition
        shares = zip(transition.target.workers, transition.shares, strict=True) if transition is not None else ()
        return {
            "elastic": join_request is not None, "micro_batches": join_request.micro_batches if join_request else 0,
            "shares": {worker: list(mine) for worker, mine in shares}, "waiting": sorted(state.registry.awaited),
        }  # fmt: skip


def voted(coordinator: Coordinator, node: str, epoch: int, answer: Body) -> list[Effect]:
    """What a launcher has said to the question for its vote."""
    if answer["vote"] or answer.get("abstains"):
        undecided = msgspec.convert(answer.get("undecided", ()), tuple[Electorate, ...])
        return coordinator.acknowledged(node, epoch, str(answer.get("abstains", "")), undecided)
    return coordinator.refused(epoch, int(answer["promised"]))


def transition_body(transition: Transition) -> Body:
    """The message `regroup`, without the rank."""
    return {
        "epoch": transition.epoch, "world": len(transition.target.placements), "workers": list(transition.target.workers),
        "step": transition.step, "current": [list(mine) for mine in transition.current],
        "shares": [list(mine) for mine in transition.shares], "finish": list(transition.finish),
        "moves": [list(move) for move in transition.moves], "source": transition.source,
        "resume_step": max(0, transition.target.resume_step),
    }  # fmt: skip
