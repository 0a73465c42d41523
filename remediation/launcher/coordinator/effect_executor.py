"""Carries out what the coordinator's state machine wants: the one place where its effects meet the world."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.config import StallConfig
from eagle_eye.errors import ControlError, EagleEyeError, PermanentError, Stale, TemporaryError
from eagle_eye.rpc.control_messages import Body, Command, Peer
from eagle_eye.types import Layout
from eagle_eye.writable_text import words_of
from remediation.launcher.control_network import Client, Server
from remediation.launcher.event_log import EventLog
from remediation.launcher.worker.worker_environment import StoreAddress

from .coordinator import Coordinator, JobPhase
from .coordinator_effects import (
    AskGrant,
    CommandResult,
    Effect,
    EmitEvent,
    End,
    EndWorkers,
    Prepare,
    ReportLayout,
    Start,
)
from .elastic_effect_executor import COMMANDS, ELASTIC_REPORTS, ElasticEffectExecutor, voted
from .epoch_formation import STALLS
from .membership import Member, place_in, precedes
from .path_test_peers import orders_of
from .quorum import Electorate
from .worker_registry import JoinRequest

log = logging.getLogger(__name__)

COMMAND_S = 3.0
"""How long a launcher may take over a command, beside the time in which its killed workers may end (`stall.end_s`)."""
LAYOUT_S = 8.0
"""How long the leader may take to answer to a layout."""
RECALL_S, RECALL_LONGEST_S = 0.5, 30.0
"""Pause before a launcher that was left out is asked to join again; doubled each time up to the longest."""
START_AGAIN_S = 0.5
"""Pause before a launcher whose answer was lost is asked again to start its workers."""
END_S = 15.0
GRANT_S = 1.0

Obey = Callable[[Command], Awaitable[Body]]
MakeStore = Callable[[], Awaitable[StoreAddress]]
DiscardCheckpoints = Callable[[int], None]


class EffectExecutor:
    """One launcher's time as coordinator. `own`: the launcher itself, reached without a session."""

    def __init__(
        self, coordinator: Coordinator, server: Server, own: Obey, event_log: EventLog, *,
        leader: Client | None, make_store: MakeStore, roll_back: DiscardCheckpoints, clock: Clock, stall: StallConfig,
    ) -> None:  # fmt: skip
        self.coordinator = coordinator
        self._server = server
        self._own = own
        self._event_log = event_log
        self._leader = leader
        self._make_store = make_store
        self._roll_back = roll_back
        self._clock = clock
        self._stall = stall
        self._command_s = COMMAND_S + stall.end_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._store: asyncio.Task[StoreAddress] | None = None
        self._recalled: set[str] = set()
        """Launchers that are asked to join again."""
        self._answers: dict[str, asyncio.Future[CommandResult]] = {}
        self._commands = 0
        self._closed = False
        self._said_alone = False
        self._in_place = ElasticEffectExecutor(self, event_log, clock, stall, self._report_layout)

    async def yield_to(self, address: str) -> None:
        """Another coordinator lives: send those that joined us there, and give the work up."""
        own = self.coordinator.declaration.node
        followers = [node for node in self.coordinator.members if node != own]  # also who was left out: it does not know
        await asyncio.gather(*(self.quietly(node, "follow", {"address": address}) for node in followers))
        await self.close()

    async def close(self) -> None:
        """Give the work up; nothing is sent to anybody."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks, *([self._store] if self._store else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for future in self._answers.values():
            if not future.done():
                future.set_result(CommandResult(command="", error="this launcher no longer coordinates the job"))

    # --- facts in --------------------------------------------------------------------------------------------------

    def join(self, body: Body) -> Body:
        """A launcher asks to take part. A candidate refuses those before it in the order that can lead."""
        state = self.coordinator
        if state.candidate and state.last is not None and body.get("last") and precedes(state.last, body["node"], state.declaration.node):
            return {"accepted": False, "coordinator": ""}
        gpus = tuple(str(gpu) for gpu in body.get("gpus", ()))
        own = body["node"] == state.declaration.node
        if not own and self._server.peer("launcher", body["node"], state.declaration.job) is None:
            return {"accepted": False, "coordinator": ""}  # its session has ended since: nobody would tell of the next end
        member = Member(node=body["node"], address=body["address"], slots=int(body["slots"]), gpus=gpus, incarnation=body["incarnation"], place=place_in(body))
        last = msgspec.convert(body["last"], Layout) if body.get("last") else None
        log.info("the launcher on %s joins", member.node)
        elastic = msgspec.convert(body.get("elastic", ()), tuple[JoinRequest, ...])
        undecided = msgspec.convert(body.get("undecided", ()), tuple[Electorate, ...])
        held, idle = bool(body.get("held")), bool(body.get("idle"))
        self.do(self.coordinator.joined(member, last, int(body["promised"]), elastic, held=held, idle=idle, undecided=undecided))
        return {"accepted": True, "epoch": state.last.epoch if state.last is not None and state.phase is JobPhase.RUNNING else 0}

    def report(self, node: str, kind: str, body: Body) -> None:
        """A launcher reports about its workers."""
        if kind == "death":
            self.do(self._in_place.death(body))
        elif kind == "late_failure":
            self.do(self._in_place.late_failure(body))
        elif kind in ELASTIC_REPORTS:
            self._in_place.report(kind, body)
        elif kind == "place":
            self.coordinator.placed(node, place_in(body))
        elif kind == "worker_finished":
            self.do(self.coordinator.worker_finished(str(body["worker"]), int(body["epoch"]), int(body["step"])))
        elif kind == "finished":
            self.do(self.coordinator.finished(node, int(body["epoch"])))
        else:
            raise ControlError(f"a coordinator does not know the report {kind!r}: is the launcher newer?")

    async def ask_store(self, question: Body) -> Body:
        """What a worker asks the rendezvous store."""
        return await self._in_place.store.answer(question)

    def lost(self, node: str, *, silent: bool) -> None:
        """A launcher's session is gone; `silent`: nothing says that its process has ended."""
        self.do(self.coordinator.left(node, silent=silent))

    async def command(self, command: Command) -> Body:
        """A command of the leader. Raises Stale for an epoch that is over, PermanentError for a refusal."""
        state = self.coordinator
        if command.epoch and command.epoch < state.epoch:
            raise Stale(f"epoch {command.epoch} of {command.job} is over: epoch {state.epoch} has begun; plan anew")
        if state.phase in {JobPhase.GATHERING, JobPhase.FORMING} and command.action in {"restart", "release", *COMMANDS}:
            raise TemporaryError(f"{command.job} is {state.phase}: ask again in a moment", delay=0.5)
        if state.stalls and command.action in {"release", "rebalance", "resize"}:
            raise TemporaryError(f"{command.job}: {STALLS}", delay=0.5)
        if command.action == "restart":
            return await self.answered(lambda key: self.coordinator.restart(key, plan=command.plan, **_request(command)))
        if command.action == "release":
            node = str(command.arguments["node"])
            return await self.answered(lambda key: self.coordinator.release(key, node, command.plan))
        if command.action == "stop":
            return await self.answered(self.coordinator.stop)
        if command.action in COMMANDS:
            return await self._in_place.command(command)
        if command.action in {"reattempt", "dump"}:
            return await self._spread(command.action, command.arguments)
        if command.action in {"status", "test_paths"}:
            return self.status() if command.action == "status" else self._test_paths(command.arguments)
        raise PermanentError(f"a coordinator does not know the command {command.action!r}: is the server newer?")

    def status(self) -> Body:
        """The state of the job."""
        state = self.coordinator
        return {
            "phase": str(state.phase), "epoch": state.epoch, "layout": state.last, "heal": state.budget.rule.heal,
            "restart_in_s": state.restart_in_s, "budget_left": state.budget.left, "excluded": sorted(state.evicted),
            "nodes": {node: member.connected for node, member in state.members.items()},
        } | self._in_place.status  # fmt: skip

    async def all_wait(self) -> bool:
        """Whether the workers of every other node that can be reached wait for their peers: nobody there keeps the others waiting."""
        state = self.coordinator
        own = state.declaration.node
        nodes = [node for node in state.last.nodes if node != own and state.members[node].connected] if state.last is not None else []
        answers = await asyncio.gather(*(self.send(node, "witness", {}) for node in nodes), return_exceptions=True)
        return all(isinstance(answer, dict) and bool(answer.get("waits")) for answer in answers)

    async def answered(self, request: Callable[[str], list[Effect]]) -> Body:
        """Do it, and wait until it is done. Raises PermanentError if it is refused."""
        self._commands += 1
        key = str(self._commands)
        future = self._answers[key] = asyncio.get_running_loop().create_future()
        self.do(request(key))
        answer = await future
        if answer.error:
            raise PermanentError(answer.error)
        return {"epoch": answer.epoch, "budget_left": self.coordinator.budget.left}

    async def _spread(self, action: str, arguments: Body) -> Body:
        """Send to the nodes of the workers, all at once, and merge the answers."""
        layout = self.coordinator.last
        if layout is None:
            raise TemporaryError("the job has no workers yet")
        workers = list(arguments.get("workers") or layout.workers)
        nodes = {node for worker in workers if (node := layout.node_of(worker))}
        answers = await asyncio.gather(
            *(self.send(node, action, {"workers": workers}) for node in nodes), return_exceptions=True
        )
        merged: Body = {}
        for answer in answers:
            if isinstance(answer, EagleEyeError):
                log.warning("%s: %s", action, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for name, value in answer.items():
                    merged[name] = merged[name] + value if isinstance(merged.get(name), list) else value
        return merged

    def _test_paths(self, arguments: Body) -> Body:
        """Passed on; the launchers tell what they find as events, and nobody waits for it."""
        orders = orders_of(self.coordinator, arguments)
        for node, order in orders.items():
            self.go(self.quietly(node, "test_paths", order))
        return {"testers": sorted(orders)}

    # --- effects out -----------------------------------------------------------------------------------------------

    def do(self, effects: Iterable[Effect]) -> None:
        """Carry out, in order; what takes time goes on in the background and comes back as a fact."""
        try:
            for effect in effects:
                self._one(effect)
        finally:
            self._set_timer()

    def _one(self, effect: Effect) -> None:
        match effect:
            case Prepare() if not effect.layout.in_place:
                self._prepare(effect)
            case Start():
                self.go(self._start(effect))
            case AskGrant():
                self.go(self._ask(effect))
            case EndWorkers():
                for node in effect.nodes:
                    self.go(self.quietly(node, "halt", {"reason": effect.reason, "after_death": effect.after_death}))
            case EmitEvent():
                self._tell(effect)
            case ReportLayout():
                self.go(self._report_layout(effect.layout, self.coordinator.budget.left))
            case CommandResult():
                self._answer(effect)
            case End():
                self.go(self._end(effect))
            case _:
                self._in_place.carry_out(effect)

    def _answer(self, effect: CommandResult) -> None:
        future = self._answers.pop(effect.command, None)
        if future is not None and not future.done():
            future.set_result(effect)

    def _prepare(self, effect: Prepare) -> None:
        if self._store is None:  # made while the old workers are still dying
            self._store = asyncio.create_task(self._new_store())
        for node in effect.nodes:
            self.go(self._vote(node, effect))

    async def _new_store(self) -> StoreAddress:
        return await self._make_store()

    async def _vote(self, node: str, effect: Prepare) -> None:
        await self._ask_for_vote(node, effect)
        await self._recall(node)

    async def _recall(self, node: str) -> None:
        """A launcher that answers too late was left out, and its session lives: it does not know that it has to join again."""
        if node in self._recalled:
            return
        self._recalled.add(node)
        wait_s = RECALL_S
        while (member := self.coordinator.members.get(node)) is not None and not member.connected and self.coordinator.phase is not JobPhase.ENDED:
            await self.quietly(node, "rejoin", {})
            await asyncio.sleep(wait_s)
            wait_s = min(RECALL_LONGEST_S, 2 * wait_s)
        self._recalled.discard(node)

    async def _ask_for_vote(self, node: str, effect: Prepare) -> None:
        layout = effect.layout
        try:
            answer = await self.send(node, "prepare", {"layout": layout, "given_up": list(effect.given_up)}, layout.epoch)
        except (TemporaryError, Stale) as error:
            log.warning("%s does not prepare epoch %d: %s", node, layout.epoch, error)
            return  # its session's end, or the deadline, decides
        except EagleEyeError as error:
            log.warning("%s cannot prepare epoch %d: %s", node, layout.epoch, error)
            self.do(self.coordinator.unprepared(node, layout.epoch, str(error)))
            return
        self.do(voted(self.coordinator, node, layout.epoch, answer))

    async def _start(self, effect: Start) -> None:
        layout = effect.layout
        self._event_log.layout(layout)
        self.go(self._report_layout(layout, effect.budget_left))
        making, self._store = self._store, None
        try:
            if layout.resume_step >= 0:
                await asyncio.to_thread(self._roll_back, layout.resume_step)
            store = self._in_place.torch_store = await making if making is not None else await self._make_store()
        except Exception as error:  # boundary: a disk that is read-only, no descriptor left: an epoch that is not told to have failed is waited for for ever
            log.exception("epoch %d cannot be started", layout.epoch)
            self.do(self.coordinator.died(layout.epoch, at_start=str(error) if isinstance(error, EagleEyeError) else words_of(error)))
            return
        arguments = {"layout": layout, "store": store, "max_restarts": self.coordinator.budget.rule.limit}
        started = await asyncio.gather(*(self._start_on(node, layout, arguments) for node in effect.nodes), return_exceptions=True)
        if not self.coordinator.runs(layout.epoch):
            return
        for node, result in zip(effect.nodes, started, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, EagleEyeError):
                raise result
            if isinstance(result, EagleEyeError) and node in layout.nodes:
                log.warning("%s does not start epoch %d: %s", node, layout.epoch, result)
                self.do(self.coordinator.died(layout.epoch, at_start=f"{node}: {result}"))
                return
        self.do(self.coordinator.started(layout.epoch))

    async def _start_on(self, node: str, layout: Layout, arguments: Body) -> None:
        """One whose answer is lost may have started its workers, and is asked again: it is no failure of theirs. Raises what the launcher answers."""
        began = self._clock.monotonic()
        while self.coordinator.runs(layout.epoch):
            try:
                await self.send(node, "start", arguments, layout.epoch)
            except TemporaryError as error:
                if node not in layout.nodes or self._clock.monotonic() - began >= self._stall.standing_s:
                    raise
                log.info("%s is asked again to start epoch %d: %s", node, layout.epoch, error)
            else:
                return
            await asyncio.sleep(START_AGAIN_S)

    async def _report_layout(self, layout: Layout, budget_left: int) -> None:
        if self._leader is None:
            return
        try:
            await self._leader.request("layout", self._words(layout, budget_left), LAYOUT_S)
        except EagleEyeError as error:  # reported again when the session is back
            log.info("the server does not know of epoch %d yet: %s", layout.epoch, error)

    def server_is(self, connected: bool) -> None:
        """The session with the server has opened or broken: a leader whose session is new is told the layout."""
        self.coordinator.server_is(connected)
        self._set_timer()
        if connected and self.coordinator.last is not None and not self.coordinator.candidate:
            self.go(self._report_layout(self.coordinator.last, self.coordinator.budget.left))

    def _words(self, layout: Layout, budget_left: int) -> Body:
        declaration, budget = self.coordinator.declaration, self.coordinator.budget
        return {"layout": layout, "heal": budget.rule.heal, "budget_left": budget_left, "nodes_min": declaration.min_nodes, **self.coordinator.demand}

    async def _ask(self, effect: AskGrant) -> None:
        granted, heard, reason = False, False, "no server is known: start the launchers with --server"
        if self._leader is not None:
            body = {
                "job": self.coordinator.declaration.job, "epoch": effect.layout.epoch, "layout": effect.layout,
                "missing": list(effect.missing), "last": effect.last,
            }  # fmt: skip
            try:
                answer = await self._leader.request("grant", body, GRANT_S)
                granted, heard, reason = answer.get("granted") is True, True, str(answer.get("reason", ""))
            except EagleEyeError as error:
                reason = str(error)
        if not granted and not self._said_alone:
            self._said_alone = True
            log.warning("half of the launchers are gone (%s) and the server does not agree to go on: %s",
                        ", ".join(effect.missing), reason)  # fmt: skip
        self.do(self.coordinator.granted(effect.layout.epoch, granted, heard))

    async def _end(self, effect: End) -> None:
        nodes = [node for node, member in self.coordinator.members.items() if member.connected]
        own = self.coordinator.declaration.node
        arguments = {"code": effect.code, "reason": effect.reason}
        await asyncio.gather(*(self.quietly(node, "end", arguments) for node in nodes if node != own))
        await self.quietly(own, "end", arguments)

    def _tell(self, effect: EmitEvent) -> None:
        log.info("%s: %s", effect.name, effect.message.partition("\n")[0])
        try:
            if effect.node:
                self._event_log.of_node(effect.name, effect.node, effect.message, effect.attributes)
            else:
                self._event_log.of_job(effect.name, effect.message, effect.attributes)
        except Exception:  # boundary: what cannot be told must not keep the workers from being started
            log.exception("%s cannot be told", effect.name)

    # --- the way there ---------------------------------------------------------------------------------------------

    async def send(self, node: str, action: str, arguments: Body, epoch: int = 0) -> Body:
        """Command a launcher, ourselves included. Raises what it answered."""
        job = self.coordinator.declaration.job
        command = Command(action=action, job=job, epoch=epoch, arguments=arguments)
        if node == self.coordinator.declaration.node:
            return await self._obey(msgspec.structs.replace(command, arguments=msgspec.to_builtins(arguments)))
        return await self._server.command(Peer(role="launcher", node=node, job=job), command, self._command_s)

    async def _obey(self, command: Command) -> Body:
        """As a launcher elsewhere answers: whatever fails here is its answer, so that the epoch is formed without it or tried again."""
        try:
            return await self._own(command)
        except EagleEyeError:
            raise
        except Exception as error:
            log.exception("command %r failed", command.action)
            raise ControlError(f"{words_of(error)} while doing {command.action!r}") from error

    async def quietly(self, node: str, action: str, arguments: Body) -> None:
        """The same, and no matter if it cannot."""
        try:
            await self.send(node, action, arguments)
        except EagleEyeError as error:
            log.info("%s could not be commanded to %s: %s", node, action, error)

    def go(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it in the background."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the coordinator failed at a step", exc_info=error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = self.coordinator.wait_s
        if seconds is not None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(seconds + 0.001, self._tick)

    def _tick(self) -> None:
        self.do(self.coordinator.tick())


def _request(command: Command) -> dict[str, Any]:
    """The arguments of the command `restart`, each of its type. Raises ControlError."""
    given = command.arguments
    try:
        return {
            "reason": str(given.get("reason") or "command"), "kind": str(given.get("kind") or ""), "own": bool(given.get("own", False)),
            "resume_step": int(given.get("resume_step", -1)), "skip": tuple(int(step) for step in given.get("skip", ())),
            "exclude": tuple(str(node) for node in given.get("exclude", ())),
            "release": tuple(str(node) for node in given.get("release", ())),
            "workers": tuple(str(worker) for worker in given.get("workers", ())), "swap": tuple(str(node) for node in given.get("swap", ())),
        }  # fmt: skip
    except (TypeError, ValueError) as error:
        raise ControlError(f"restart was given arguments of a wrong type: {error}") from error
