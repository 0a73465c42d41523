"""A launcher's part in its job: it follows the coordinator, or leads, and serves the control channel for both."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import msgspec

from eagle_eye.access.caller import Caller
from eagle_eye.clock import Clock
from eagle_eye.errors import AccessDenied, ControlError, LaunchError, PermanentError, TemporaryError
from eagle_eye.rpc.control_messages import SILENT, Body, Command, ConnectionState, Peer
from eagle_eye.rpc.control_server import AGREEMENT, COPIES, PATH_TEST
from eagle_eye.types import Layout, NodePlace
from remediation.launcher.coordinator import report_origin
from remediation.launcher.coordinator.coordinator import Coordinator, JobDeclaration
from remediation.launcher.coordinator.effect_executor import DiscardCheckpoints, EffectExecutor, MakeStore
from remediation.launcher.coordinator.elastic_effect_executor import ELASTIC_REPORTS
from remediation.launcher.coordinator.heal_budget import HealBudget

from .control_network import Client, Network
from .coordinator_election import CoordinatorElection
from .event_log import EventLog
from .follower import ASK_LEADER_S, Follower, FollowingMember, join_request
from .job_member import refuse_other_job
from .launcher_loss_witness import LauncherLossWitness, Proof
from .launcher_settings import LauncherSettings
from .leader_view import LeaderView
from .network_path import echo
from .vote_log import VoteLog

log = logging.getLogger(__name__)

TOLD_KEPT = 1000
"""Callers that are remembered, so that the refusal of each is told once."""
POLL_S = 0.25
COPIES_S = 5.0
"""How long it is waited for: all launchers may have work at that moment."""


class LocalMember(FollowingMember, Protocol):
    """What this node's workers are to their job, as `JobMember`."""

    released: Callable[[], None]
    waits: Callable[[], bool]

    @property
    def highest_step(self) -> int: ...


CheckWayBack = Callable[[int], None]
"""Raises PermanentError where no checkpoint at or before that step is kept."""


class Participation:
    """Follows or leads, as the votes and the other launchers have it. `bind` comes first: the member reports to us."""

    def __init__(
        self, settings: LauncherSettings, network: Network, votes: VoteLog, event_log: EventLog, budget: HealBudget, witness: LauncherLossWitness,
        clock: Clock, *, incarnation: str, make_store: MakeStore, roll_back: DiscardCheckpoints, check_way_back: CheckWayBack,
        place: Callable[[], NodePlace] = NodePlace,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._network = network
        self._votes = votes
        self._event_log = event_log
        self._budget = budget
        self._witness = witness
        self._clock = clock
        self._incarnation = incarnation
        self._make_store = make_store
        self._roll_back = roll_back
        self._check_way_back = check_way_back
        self._place = place
        self._server = network.server(self, settings.address)
        self._view = LeaderView(settings.job, settings.node)
        self.leader: Client | None = None
        """Our session to the server; None where the job has none."""
        self._follower: Follower | None = None
        self._executor: EffectExecutor | None = None
        self._refused: set[Caller] = set()
        self.copies: Callable[[Body], Awaitable[Body]] = _no_copies
        """Question of another launcher → what this one says of its checkpoints in memory."""

    def bind(self, member: LocalMember) -> None:
        """This node's workers."""
        self._member = member
        member.waits = self._witness.waits
        member.released = self._join_again

    async def start(self) -> None:
        """Listen, and open the session to the server. Raises ControlError."""
        await self._listen()
        if self._settings.leader:
            self.leader = self._view.client = self._network.client(
                self._settings.leader, self._peer, on_command=self._obey_leader, on_state=self._leader_state
            )
            await self.leader.start()
        self._follower = Follower(
            self._settings, self._peer, self._member, self._votes, self._event_log, self._network, self._clock,
            witness=self._witness, coordinator_of=self._view.coordinator, present=self._view.present, place=self._place,
        )  # fmt: skip

    async def _listen(self) -> None:
        """At its address; the second launcher at a rendezvous address takes any port beside it, if it may."""
        try:
            await self._server.start()
        except ControlError:
            if not self._settings.or_any_port:
                raise
            self._server = self._network.server(self, f"{self._settings.address.rpartition(':')[0]}:0")
            await self._server.start()

    @property
    def loops(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """To be run side by side once it has started, until cancelled; each may begin again. LaunchError: too few launchers were there for too long."""
        following = self._follower
        if following is None:
            return {}
        return {"taking part in the job": partial(self._take_part, following), "the search for lost launchers": self._watch_progress, "the sending of reports": following.reports.run}

    def stop(self) -> bool:
        """The user stops the job; False if another launcher coordinates it."""
        if self._executor is None:
            return False
        self._executor.do(self._executor.coordinator.stop())
        return True

    async def close(self) -> None:
        """Leave the job and the server."""
        if self._executor is not None:
            await self._executor.close()
        if self._follower is not None:
            await self._follower.close()
        if self.leader is not None:
            await self.leader.stop()
        await self._server.stop()
        self._witness.close()

    # --- who coordinates -----------------------------------------------------------------------------------------

    async def _take_part(self, following: Follower) -> None:
        """Follow or lead, whichever it is, again and again; who leads already goes on."""
        if self._executor is not None:
            address = await self._while_candidate(following)
            await self._follow_and_lead(following, address)
        last = None if self._votes.record.over else self._votes.record.last
        address = "" if self._settings.new_server else await self._view.coordinator()
        if not address and last is None and self._is_rendezvous():
            self._lead(())
            address = await self._while_candidate(following)
        if not address and last is not None:
            address = await self._search(following)
        await self._follow_and_lead(following, address)

    async def _follow_and_lead(self, following: Follower, address: str) -> None:
        while True:
            lost = await following.follow(address or self._settings.rendezvous) if address != self.address else ()
            self._lead(lost)
            address = await self._while_candidate(following)

    async def _search(self, following: Follower) -> str:
        """A launcher that was started again asks those that it knows; our own address: nobody before us is there."""
        last = self._votes.record.last
        if last is None:
            return ""
        others = [node for node in last.launchers if node != self._settings.node]
        for node in others:
            if await following.join(last.launchers[node], self._settings.lease_s / 2):
                return following.address
        before = CoordinatorElection(last, self._settings.node, gone=tuple(others))
        return self.address if before.ours or len(last.voters) > 1 else self._settings.rendezvous or self.address

    def _lead(self, lost: tuple[str, ...]) -> None:
        settings = self._settings
        record = self._votes.record
        last = None if record.over else record.last
        declaration = JobDeclaration(
            job=settings.job, node=settings.node, min_nodes=settings.nnodes[0], max_nodes=settings.nnodes[1],
            join_timeout_s=settings.join_timeout_s, wait_nodes_s=settings.wait_nodes_s,
            patience_s=settings.patience_s, server_s=settings.server_s if settings.leader else 0.0, min_workers=settings.min_workers, respawns=settings.respawns,
            weight=settings.weight, lease_s=settings.lease_s, max_skipped_steps=settings.max_skipped_steps,
            parallel=settings.parallel_sizes, reconnect_s=settings.stall.reconnect_s, silent_s=settings.stall.silent_s, prepare_s=settings.stall.end_s, boundary_s=settings.stall.boundary_s,
        )  # fmt: skip
        coordinator = Coordinator(declaration, self._budget, self._clock, last, lost)
        self._executor = EffectExecutor(
            coordinator, self._server, self._member.obey, self._event_log,
            leader=self.leader, make_store=self._make_store, roll_back=self._roll_back,
            clock=self._clock, stall=settings.stall,
        )  # fmt: skip
        coordinator.refused(0, self._view.epoch)  # a number that was given out before is never given out again
        coordinator.server_is(self.leader is not None and self.leader.connected)
        log.info("this launcher coordinates %s", settings.job)
        self._join_own(self._executor)
        for peer in self._server.peers:  # they have a session from before, and would not join again by themselves
            if peer.role == "launcher":
                self._executor.go(self._executor.quietly(peer.node, "rejoin", {}))

    def _join_again(self) -> None:
        """Workers that the kernel held have ended: the coordinator had left us out for them."""
        if self._executor is not None:
            self._join_own(self._executor)
        elif self._follower is not None:
            self._follower.join_again()

    def _join_own(self, leading: EffectExecutor) -> None:
        """Take part in the job that we coordinate."""
        leading.join(join_request(self._settings, self._peer, self._votes, self._member, self._place()))

    async def _while_candidate(self, following: Follower) -> str:
        """Lead for good, unless another coordinator turns up before a majority has followed: then its address.

        Raises LaunchError if neither happens for as long as more nodes are waited for.
        """
        alone: float | None = None
        while (leading := self._executor) is not None:
            await asyncio.sleep(ASK_LEADER_S)
            last = leading.coordinator.last
            if not (leading.coordinator.candidate or leading.coordinator.isolated) or last is None:
                alone = None
                continue
            alone = self._clock.monotonic() if alone is None else alone
            self._stays_alone(leading.coordinator.missing, self._clock.monotonic() - alone)
            find = self._gone_on if leading.coordinator.isolated else self._joined
            if address := await find(following, last, leading):
                self._executor = None
                lost = leading.coordinator.lost_ballots
                await leading.yield_to(address)
                self._votes.forget(lost)
                following.join_again()
                return address
        return ""

    async def _joined(self, following: Follower, last: Layout, leading: EffectExecutor) -> str:
        """The coordinator that takes us in, '' if none does."""
        for address in await self._others(last):
            if leading.coordinator.candidate and await following.join(address, self._settings.lease_s / 4):
                if leading.coordinator.candidate:
                    return following.address
                await following.close()  # a majority has followed us meanwhile
        return ""

    async def _others(self, last: Layout) -> list[str]:
        """Addresses at which another coordinator may be found."""
        others = [address for node, address in last.launchers.items() if node != self._settings.node]
        return [address for address in dict.fromkeys([await self._view.coordinator(), *others]) if address]

    async def _gone_on(self, following: Follower, last: Layout, leading: EffectExecutor) -> str:
        """The coordinator under which the others have gone on without us, '' if they have not: then our epoch is the last one."""
        for address in await self._others(last):
            found = await following.newer_coordinator(address, last.epoch)
            if found and found != self.address and leading.coordinator.isolated:
                return found
        return ""

    def _stays_alone(self, missing: tuple[str, ...], seconds: float) -> None:
        """Without a majority. Raises LaunchError after long enough, unless workers here train on; how the job ends is not ours to say."""
        longest = self._settings.wait_nodes_s
        if seconds > longest and self._witness.waits():
            raise LaunchError(
                f"{', '.join(missing)} could not be reached for {longest:g} s: without them too few launchers of {self._settings.job} "
                "are here to go on. If it goes on elsewhere, start this launcher again when the network is whole: it joins the others"
            )

    def _is_rendezvous(self) -> bool:
        return self._settings.rendezvous in ("", self.address)

    async def _watch_progress(self) -> None:
        """Second witness of a lost launcher: all workers that can be reached wait."""
        broke: float | None = None
        while True:
            await asyncio.sleep(POLL_S)
            self._witness.look()
            leading = self._executor
            suspects = leading.coordinator.suspects if leading is not None else ()
            if leading is None or not suspects:
                broke = None
                continue
            now = self._clock.monotonic()
            broke = now if broke is None else broke
            addresses = [leading.coordinator.members[node].address for node in suspects]
            proof = await self._witness.proves(now - broke, partial(self._view.any_present, suspects), addresses)
            if proof is Proof.ENDED or (proof is Proof.WAITS and await leading.all_wait()):
                leading.do(leading.coordinator.no_progress(self._member.highest_step))

    # --- handler of our control channel ---------------------------------------------------------------------------

    def objection(self, peer: Peer) -> str:
        """Why it may have no session: a node has one launcher of a job, and without certificates a job's launchers run as one user; '' if it may."""
        if (peer.role, peer.node, peer.job) == self._peer.key and peer.incarnation != self._incarnation:
            return f"this launcher (pid {os.getpid()}) is the {peer}: give each machine a node name of its own (--node), and start one launcher of a job on it"
        if peer.caller.local and not peer.caller.owns_server:
            return f"this launcher of {self._settings.job} takes orders and reports of its own user alone, not of {peer.caller}"
        return ""

    def refused(self, peer: Peer, why: str) -> None:
        """It got no session: told once for each caller, however often it tries."""
        if peer.caller not in self._refused:
            if len(self._refused) >= TOLD_KEPT:
                self._refused.clear()
            self._refused.add(peer.caller)
            log.warning("the %s was refused: %s", peer, why)
            self._event_log.of_node("session.refused", self._settings.node, f"the {peer} was refused: {why}", {"caller": str(peer.caller)})

    def opened(self, peer: Peer) -> None:
        """Its request to join says the rest."""

    def lost(self, peer: Peer, reason: str) -> None:
        if self._executor is not None and peer.role == "launcher":
            log.info("the session of the %s ended: %s", peer, reason)
            self._executor.lost(peer.node, silent=SILENT in reason)

    async def request(self, peer: Peer, kind: str, body: Body) -> Body:
        if peer.job != self._settings.job:
            raise PermanentError(f"this launcher runs {self._settings.job}, not {peer.job}: check --rdzv")
        if (answer := self._answer_beside(peer, kind)) is not None:
            return await answer(body)
        if why := report_origin.objection(peer, kind, body):
            self.refused(peer, why)
            raise AccessDenied(why)
        leading = self._executor
        if kind == "epoch":
            return self._epoch()
        if kind == "join":
            if leading is not None:
                return leading.join(body)
            return {"accepted": False, "coordinator": self._follower.address if self._follower else ""}
        if leading is None:
            raise TemporaryError("this launcher does not coordinate the job")
        if kind == "store":
            return await leading.ask_store(body)
        if kind not in {"death", "late_failure", "place", "worker_finished", "finished", *ELASTIC_REPORTS}:
            raise ControlError(f"a coordinator does not know the request {kind!r}")
        leading.report(peer.node, kind, body)
        return {}

    def _answer_beside(self, peer: Peer, kind: str) -> Callable[[Body], Awaitable[Body]] | None:
        """What answers a launcher in a session that it has beside the one of the job; None: this is no such request."""
        if peer.role in {COPIES, AGREEMENT} and kind == "copies":
            return self.copies
        return echo if peer.role == PATH_TEST and kind == "echo" else None

    def _epoch(self) -> Body:
        """The last valid epoch that is known here, and who coordinates it; for a coordinator that has lost its majority."""
        last = self._votes.record.last
        if last is None or self._votes.record.over:
            return {"epoch": 0, "coordinator": ""}
        if self._executor is not None:
            return {"epoch": last.epoch, "coordinator": "" if self._executor.coordinator.candidate else self.address}
        return {"epoch": last.epoch, "coordinator": self._follower.address if self._follower else ""}

    # --- the leader --------------------------------------------------------------------------------------------------

    async def _obey_leader(self, command: Command) -> Body:
        refuse_other_job(command, self._settings.job)
        if self._executor is None:
            raise TemporaryError(f"the launcher on {self._settings.node} does not coordinate {self._settings.job}")
        if command.action == "restart":
            await asyncio.to_thread(self._check_way_back, int(command.arguments.get("resume_step", -1)))
        return await self._executor.command(command)

    def _leader_state(self, connection: ConnectionState) -> None:
        if self._executor is None:
            return
        self._executor.server_is(connection.connected)

    # --- checkpoints in memory -----------------------------------------------------------------------------------------

    async def ask_for_copies(self, address: str, question: Body) -> Body:
        """What the launcher at `address` says of its checkpoints in memory. Raises EagleEyeError."""
        peer = msgspec.structs.replace(self._peer, role=AGREEMENT if question else COPIES)
        client = self._network.client(address, peer, welcome_s=COPIES_S)
        await client.start()
        try:
            return await client.request("copies", question, COPIES_S + question.get("wait_s", 0.0))
        finally:
            await client.stop()

    def path_test_client(self, address: str, welcome_s: float) -> Client:
        """For a session beside the one that we may have there as a launcher."""
        return self._network.client(address, msgspec.structs.replace(self._peer, role=PATH_TEST), welcome_s=welcome_s)

    # --- reports of our own workers -----------------------------------------------------------------------------------

    def report(self, kind: str, body: Body) -> None:
        """Bring it to whoever coordinates."""
        if self._executor is not None:
            self._executor.report(self._settings.node, kind, body)
        elif self._follower is not None:
            self._follower.reports.put(kind, body)

    async def reported(self) -> None:
        """Wait until the coordinator knows all reports."""
        if self._executor is None and self._follower is not None:
            await self._follower.reports.sent()

    async def ask_store(self, question: Body) -> Body:
        """What a worker asks the coordinator's store. Raises TemporaryError."""
        if self._executor is not None:
            return await self._executor.ask_store(question)
        if self._follower is not None:
            return await self._follower.ask_store(question)
        raise TemporaryError("there is no coordinator")

    @property
    def coordinator(self) -> Coordinator | None:
        """That this launcher is, if it leads."""
        return self._executor.coordinator if self._executor is not None else None

    @property
    def address(self) -> str:
        """Of our control channel."""
        host = self._settings.address.rpartition(":")[0]
        return f"{host}:{self._server.port}"

    @property
    def _peer(self) -> Peer:
        return Peer(
            role="launcher", node=self._settings.node, job=self._settings.job, incarnation=self._incarnation, pid=os.getpid(),
            address=self.address,
        )  # fmt: skip


async def _no_copies(_: Body) -> Body:
    return {}
