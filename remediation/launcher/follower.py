"""A launcher that does not coordinate: it finds the coordinator, joins it, sends it its reports in order, and notices when it is gone."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError, LaunchError, TemporaryError
from eagle_eye.rpc.control_messages import SILENT, Body, Command, ConnectionState, Peer, number_in
from eagle_eye.types import NodePlace
from remediation.launcher.coordinator.rendezvous_store import POLL_S

from .control_network import Client, Network
from .coordinator_election import CoordinatorElection
from .event_log import EventLog
from .launcher_loss_witness import LauncherLossWitness, Proof
from .launcher_settings import LauncherSettings
from .vote_log import VoteLog

log = logging.getLogger(__name__)

SESSION_POLL_S = 0.02
RETRY_S = 0.1
ASK_LEADER_S = 0.5

Send = Callable[[str, Body], Awaitable[None]]
"""Raises TemporaryError while no coordinator is connected."""


class FollowingMember(Protocol):
    """What this node's workers are to their coordinator, as `JobMember`."""

    moved: Callable[[str], None]
    broken: bool

    @property
    def registry(self) -> list[Body]: ...
    @property
    def held(self) -> bool: ...
    @property
    def idle(self) -> bool: ...
    async def obey(self, command: Command) -> Body: ...
    async def coordinator_lost(self) -> None: ...
    async def overtaken(self, epoch: int) -> None: ...


class ReportQueue:
    """Each is tried until the coordinator knows it, unless it is of an epoch that is over; `lasting` ones always."""

    def __init__(self, send: Send, promised: Callable[[], int]) -> None:
        self._send = send
        self._promised = promised
        self._waiting: deque[tuple[str, Body]] = deque()
        self._news = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._complained: Body | None = None
        """What could not be sent: logged once, not at each try."""

    def put(self, kind: str, body: Body) -> None:
        self._waiting.append((kind, body))
        self._all_sent.clear()
        self._news.set()

    async def sent(self) -> None:
        """Wait until none is left."""
        await self._all_sent.wait()

    def forget(self, *kinds: str) -> None:
        """The coordinator is about to receive the present state: these reports would be older."""
        self._waiting = deque(report for report in self._waiting if report[0] not in kinds)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while self._waiting:
                await self._first(*self._waiting[0])
            self._all_sent.set()
            self._news.clear()
            await self._news.wait()

    async def _first(self, kind: str, body: Body) -> None:
        report = self._waiting[0]
        try:
            if body.get("lasting") or self._promised() <= int(body["epoch"]):
                await self._send(kind, body)
        except TemporaryError as error:
            if self._complained is not body:
                self._complained = body
                log.info("the report %s has not reached the coordinator yet: %s", kind, error)
            await asyncio.sleep(RETRY_S)
            return
        except EagleEyeError as error:
            log.warning("the coordinator refuses the report %s: %s", kind, error)
        except Exception:  # boundary: a report that cannot be sent at all must not keep those behind it
            log.exception("the report %s cannot be sent", kind)
        with contextlib.suppress(ValueError):  # forgotten meanwhile
            self._waiting.remove(report)


def join_request(settings: LauncherSettings, peer: Peer, votes: VoteLog, member: FollowingMember, place: NodePlace) -> Body:
    """What a launcher says of itself to whoever coordinates, itself included."""
    record = votes.record
    return {
        "node": settings.node, "address": peer.address, "slots": settings.nproc, "gpus": settings.gpus, "incarnation": peer.incarnation,
        "promised": record.promised, "last": None if record.over else msgspec.to_builtins(record.last),
        "elastic": member.registry, "held": member.held, "idle": member.idle, "undecided": msgspec.to_builtins(votes.undecided),
        "place": msgspec.to_builtins(place),
    }  # fmt: skip


class Follower:
    """`follow` returns when it is this launcher's turn to lead."""

    def __init__(
        self, settings: LauncherSettings, peer: Peer, member: FollowingMember, votes: VoteLog, event_log: EventLog, network: Network,
        clock: Clock, *, witness: LauncherLossWitness, coordinator_of: Callable[[], Awaitable[str]],
        present: Callable[[str], Awaitable[bool | None]], place: Callable[[], NodePlace] = NodePlace,
    ) -> None:  # fmt: skip
        """`witness`: kept up to date by the launcher; `coordinator_of`: what the leader knows, '' if nothing; `present`: whether it knows a node to be there;
        `place`: where this node is, as far as that is known."""
        self._settings = settings
        self._peer = peer
        self._member = member
        self._votes = votes
        self._event_log = event_log
        self._network = network
        self._witness = witness
        self._coordinator_of = coordinator_of
        self._present = present
        self._place = place
        self._rejoining: asyncio.Task[None] | None = None
        self._clock = clock
        self._client: Client | None = None
        self._changed = asyncio.Event()
        self._moved = ""
        self._why_not = ""
        """Why there is no session to the coordinator, as far as it is known."""
        self._silent: bool | None = None
        """Why the session to the coordinator broke: nothing was heard of it, and its process may be there. None while it stands."""
        member.moved = self._move
        self.reports = ReportQueue(self._report, lambda: self._votes.record.promised)
        """For the coordinator."""
        self.address = ""
        """Of the coordinator that we have joined; '' while there is none."""

    async def close(self) -> None:
        """Leave the coordinator."""
        if self._rejoining is not None:
            self._rejoining.cancel()
        client, self._client, self.address = self._client, None, ""
        if client is not None:
            await client.stop()

    async def _report(self, kind: str, body: Body) -> None:
        if self._client is None or not self.address or not self._client.connected:
            raise TemporaryError("there is no coordinator")
        await self._client.request(kind, body, self._settings.lease_s)

    async def ask_store(self, question: Body) -> Body:
        """What a worker asks the coordinator's store. Raises TemporaryError."""
        if self._client is None or not self.address:
            raise TemporaryError("there is no coordinator")
        return await self._client.request("store", question, POLL_S + self._settings.lease_s)

    async def follow(self, address: str) -> tuple[str, ...]:
        """Join the coordinator at `address` and the ones after it. Returns the lost nodes once it is our turn."""
        began = self._clock.monotonic()
        while True:
            if self._has_joined(address) or await self.join(address, self._settings.lease_s):
                if await self._stay():
                    address, self._moved = self._moved, ""
                    continue
            elif self._votes.record.last is None or self._votes.record.over:
                self._waited(address, self._clock.monotonic() - began)
                address = await self._coordinator_of() or address
                continue
            gone = await self._after_the_coordinator()
            if isinstance(gone, tuple):
                return gone
            address = gone or self._settings.rendezvous

    def _waited(self, address: str, seconds: float) -> None:
        """A job that has never been there. Raises LaunchError after long enough."""
        log.warning("waiting for the job's coordinator at %s%s", address, f": {self._why_not}" if self._why_not else "")
        if seconds > self._settings.wait_nodes_s:
            raise LaunchError(f"no launcher of {self._settings.job} coordinates at {address}: check --rdzv")

    # --- joining -------------------------------------------------------------------------------------------------

    def _has_joined(self, address: str) -> bool:
        return self.address == address and self._client is not None and self._client.connected

    async def join(self, address: str, timeout: float, *, gone: Collection[str] = ()) -> bool:
        """Ask the launcher at `address`, and those that it names, to admit this one to the job; True once one does.

        `gone`: addresses of coordinators that are known to be gone: a launcher that names one has not noticed yet, and is asked again.
        """
        began = self._clock.monotonic()
        asked = address
        while (left := timeout - (self._clock.monotonic() - began)) > 0:
            answer = await self._knock(asked, left)
            if answer.get("accepted"):
                return True
            named = str(answer.get("coordinator") or "")
            asked = address if named in gone else named or address
            await asyncio.sleep(min(RETRY_S, left))
        return False

    async def _knock(self, address: str, timeout: float) -> Body:
        if address == self._peer.address:
            return {}
        await self.close()
        self._changed.clear()
        client = self._network.client(address, self._peer, on_command=self._member.obey, on_state=self._state, welcome_s=timeout)
        await client.start()
        self._client = client
        answer = await self._ask_in(client, timeout)
        if answer.get("accepted"):
            self.address = address
        else:
            await self.close()
        return answer

    async def _ask_in(self, client: Client, timeout: float) -> Body:
        body = join_request(self._settings, self._peer, self._votes, self._member, self._place())
        self.reports.forget("entered", "held", "abandoned")
        try:
            answer = await client.request("join", body, timeout)
        except EagleEyeError as error:
            log.debug("not joined: %s", error)
            return {}
        last, epoch = self._votes.record.last, number_in(answer, "epoch")  # as it is now: the answer may have taken its time
        if last is not None and epoch > last.epoch:
            await self._member.overtaken(epoch)
        return answer

    async def newer_coordinator(self, address: str, epoch: int) -> str:
        """Ask the launcher at `address` who coordinates the job under an epoch above `epoch`; '' if nobody does, or it does not answer."""
        client = self._network.client(address, self._peer, welcome_s=ASK_LEADER_S)
        await client.start()
        try:
            answer = await client.request("epoch", {}, 2 * ASK_LEADER_S)
        except EagleEyeError as error:
            log.debug("%s cannot be asked for its epoch: %s", address, error)
            return ""
        finally:
            await client.stop()
        return str(answer.get("coordinator", "")) if number_in(answer, "epoch") > epoch else ""

    def _state(self, connection: ConnectionState) -> None:
        if self._silent is None and not connection.connected:
            self._silent = SILENT in connection.reason
        self._why_not = connection.reason
        self._changed.set()

    def _move(self, address: str) -> None:
        self._moved = address
        self._changed.set()

    def join_again(self) -> None:
        """The coordinator has left us out for processes that did not end: they have. Or what we told when we joined is not so any more."""
        if self._client is not None and self.address:
            self._rejoining = asyncio.create_task(self._join_again(self._client))

    async def _join_again(self, client: Client) -> None:
        """Whoever has coordinated may not do so any more, and names who does."""
        answer = await self._ask_in(client, self._settings.lease_s)
        named = str(answer.get("coordinator") or "")
        if client is self._client and not answer.get("accepted") and named and named != self._peer.address:
            self._move(named)

    # --- losing --------------------------------------------------------------------------------------------------

    async def _stay(self) -> bool:
        """Until the coordinator is gone. True: another took its place; False: it is gone."""
        client = self._client
        while client is not None:
            while client.connected and not self._moved:
                self._silent = None
                self._changed.clear()
                await self._changed.wait()
            if self._moved:
                return True
            self._tell_lost()
            if not await self._back(client):
                return False
        return False

    async def _back(self, client: Client) -> bool:
        """Whether the session comes back, and we with it, before a second witness says that it will not."""
        broke = self._clock.monotonic()
        failed: float | None = None
        """Since when our workers have been without their peers."""
        while True:
            if client.connected and (answer := await self._ask_in(client, self._settings.lease_s)):
                return bool(answer.get("accepted"))
            now = self._clock.monotonic()
            failed = now if self._member.broken and failed is None else failed
            if (failed is not None and now - failed >= self._patience_s) or await self._proves(now - broke):
                return False
            await asyncio.sleep(SESSION_POLL_S)

    @property
    def _patience_s(self) -> float:
        """How long a coordinator that has fallen silent is waited for once our workers have failed: a job that is not elastic pays a restart for going on without it."""
        return self._settings.stall.silent_s if self._silent and not self._member.registry else 0.0

    async def _proves(self, broke_s: float) -> bool:
        """Whether the coordinator is gone, as far as can be seen from here."""
        last = self._votes.record.last
        addresses = (last.launchers[last.coordinator],) if last is not None else ()
        return await self._witness.proves(broke_s, self._is_elsewhere, addresses) is not Proof.NONE

    async def _is_elsewhere(self) -> bool | None:
        """Whether the server has a session with the coordinator; None if it cannot be asked."""
        last = self._votes.record.last
        return await self._present(last.coordinator) if last is not None else None

    def _tell_lost(self) -> None:
        last = self._votes.record.last
        if last is not None:
            message = f"the session to the coordinator on {last.coordinator} broke"
            self._event_log.of_node("peer.lost", last.coordinator, message, {"seen_by": self._settings.node})

    async def _after_the_coordinator(self) -> str | tuple[str, ...]:
        """The address of the next coordinator, or the lost nodes if it is our turn.

        Elastic workers are fenced first. No worker is ended: whoever coordinates next does that, with a majority, or the coordinator is back.
        """
        await self.close()
        await self._member.coordinator_lost()
        last = self._votes.record.last
        while last is not None:
            gone_first = (last.coordinator,) if last.coordinator != self._settings.node else ()  # we were started again
            election_order = CoordinatorElection(last, self._settings.node, gone=gone_first)
            while (node := election_order.next()) and not election_order.ours:
                gone = {election_order.address(each) for each in election_order.gone}
                if await self.join(election_order.address(node), 1.5 * self._settings.lease_s, gone=gone):
                    return self.address
                election_order.unreachable(node)
            if election_order.ours:
                return election_order.gone
            known = await self._coordinator_of() or last.launchers[last.coordinator]
            if known != self._peer.address and await self.join(known, self._settings.lease_s):
                return self.address
        return ""
