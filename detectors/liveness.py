"""Lost nodes and lost launchers.

A node counts as lost when three independent signs agree: its batches stopped, its sessions on the control channel are
closed, and the training shows it: the job stalls, a worker saw a connection break, or an epoch began without the node. A
restarted server, an unavailable stream, a dead agent, a network between launchers that is cut give one or two of these
signs. A launcher counts as lost when its session is closed and its node's agent tells of workers that ended with it: one
that does not answer is out of sight, and its workers train on. It counts as lost, too, when its job has gone on without a node whose
agent reports: then it is told although the launcher was back before anybody looked, and with its process state where the agent saw that it was only stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Seconds, Share
from eagle_eye.topology import node_of_worker
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind, Layout

from .features.active_claims import ActiveClaims
from .features.exit_status import status_of_exception
from .features.launcher_states import LauncherStates

ROLES = ("agent", "launcher")
GONE_ON = "gone_on_s"
"""Metric of the evidence that a job goes on without a node: nothing that went wrong before follows from its loss."""
WENT_ON = "node lost"
"""Reason of an epoch that a coordinator began because it missed a launcher (remediation/launcher/job_declaration.py)."""


@dataclass(slots=True)
class _Node:
    """The signs against one node."""

    lost: dict[str, Event] = field(default_factory=dict)
    """Role → the event that its session is gone; taken out when it opens again."""
    counts: bool = True
    """False: it vanished together with many others, so its sessions prove nothing."""
    unreached: Event | None = None
    """The session between its launcher and another one broke."""
    orphan: Event | None = None
    """The end of a worker whose launcher has ended, told by its agent."""
    heard_at: float = -np.inf
    """When the stream brought an event that was written there after a session of it had gone: somebody lives."""
    had_launcher: bool = False


class _Miss(NamedTuple):
    """A job went on, or stopped, without a launcher of it."""

    epoch: int
    """The last one with it."""
    since: float
    """When that was read."""
    replaced: bool = False
    """The next epoch has another launcher there."""


@dataclass
class Liveness:
    """Claims node.lost and launcher.lost; withdrawn when the node reports again, or the job begins an epoch with the launcher back."""

    silence_s: Seconds = 1.5
    """Batches come each second; a node is silent when its newest is older."""
    stall_s: Seconds = 2.0
    """The job stalls when no worker made progress for so long (seconds)."""
    lease_s: Seconds = 3.0
    """Lease of a session: nodes that vanish within it vanish together."""
    crowd_share: Share = 0.1
    """When more than this share of the nodes, and at least `crowd_nodes`, vanish together, sessions stop counting."""
    crowd_nodes: Count = 3
    """See `crowd_share`: a dead switch or server must not look like many dead nodes."""
    _nodes: dict[str, _Node] = field(default_factory=dict, init=False, repr=False)
    _off: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _newest: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _vanished: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _broken: Event | None = field(default=None, init=False, repr=False)
    _failed: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """Node → when a worker of it failed by itself, in this epoch ..."""
    _failed_before: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """... and in the one that it ended."""
    _progress: float = field(default=-1.0, init=False, repr=False)
    _moved: float = field(default=float("inf"), init=False, repr=False)
    _over: bool = field(default=False, init=False, repr=False)
    _waits: bool = field(default=False, init=False, repr=False)
    """The job backs off: that nothing moves is no sign against anybody."""
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _broke: dict[str, Event] = field(default_factory=dict, init=False, repr=False)
    """Node → the first event that a session of its launcher broke, with whomever; kept when it opens again ..."""
    _reopened: set[str] = field(default_factory=set, init=False, repr=False)
    """... and until the next one breaks."""
    _missed: dict[str, _Miss] = field(default_factory=dict, init=False, repr=False)
    """Node → that its job went on, or stopped, without its launcher; until it is clear what was lost."""
    _ended: dict[str, tuple[float, int]] = field(default_factory=dict, init=False, repr=False)
    """Node → when the loss of its launcher was told last, and in which epoch."""
    _back: set[str] = field(default_factory=set, init=False, repr=False)
    """Nodes whose launcher has opened its session again."""
    _states: LauncherStates = field(default_factory=LauncherStates, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            self._states.take(event)
            yield from self._take(event)
            yield from self._take_stop(event, frame)
            if event.node in self._nodes and self._nodes[event.node].lost:
                self._nodes[event.node].heard_at = frame.time
            if event.name == "exit" and event.attributes.get("launcher") == "ended" and not self._over:
                proof = Evidence(text=f"worker {event.entity.name} has ended, and its launcher before it", event=event.id)
                epoch = self._missed[event.node].epoch if event.node in self._missed else self._layout.epoch if self._layout is not None else 0
                yield from self._lose_launcher(event.node, event.time, proof, since=event.time, epoch=epoch)
        if frame.layout is not None:
            for name in self._nodes.keys() & frame.layout.launchers.keys():
                self._nodes[name].had_launcher = True
        self._watch_layouts(frame)
        if frame.tick:
            self._watch_clocks(frame)
            self._watch_progress(frame)
        self._discount_crowds(frame)
        if not self._over:
            for name, node in self._nodes.items():
                yield from self._judge(name, node, frame)
            if frame.tick:
                yield from self._judge_missed(frame)
        yield from self._returned(frame)

    # --- signs from events

    def _take(self, event: Event) -> Iterator[Claim]:
        name = event.entity.name
        if event.name == "session.lost":
            node = self._nodes.setdefault(name, _Node())
            node.lost[event.attributes.get("role", "agent")] = event
            if event.attributes.get("role") == "launcher":
                self._break(name, event)
                self._back.discard(name)
            self._vanished.setdefault(name, event.time)
        elif event.name == "session.opened":
            yield from self._opened(name, event)
        elif event.name == "peer.lost":
            self._nodes.setdefault(name, _Node()).unreached = event
            self._break(name, event)
        elif event.name in ("exit", "exception"):
            self._take_failure(event)
        else:
            self._take_state(event)

    def _break(self, name: str, event: Event) -> None:
        """Its peers see it at once, a busy server a second later."""
        if name not in self._broke or name in self._reopened:
            self._broke[name] = event
            self._reopened.discard(name)

    def _take_failure(self, event: Event) -> None:
        """Of a worker: by itself, with its launcher, or because it missed a peer."""
        if event.attributes.get("launcher") == "ended":
            self._nodes.setdefault(event.node, _Node()).orphan = event
        elif event.name == "exception" and status_of_exception(event).symptom:
            self._broken = event
        elif event.name == "exception" or event.attributes.get("signal") == "SIGKILL":
            self._failed[node_of_worker(event.entity.name)] = event.time

    def _take_state(self, event: Event) -> None:
        """Of the job."""
        if event.name in ("job.finished", "job.failed"):
            self._over = True
        elif event.name == "restart.delayed":
            self._waits = True
        elif event.name in ("job.started", "epoch.started"):
            self._over = False
            self._failed_before, self._failed = self._failed, {}
            if self._waits:
                self._waits, self._moved = False, event.time

    def _take_stop(self, event: Event, frame: Frame) -> Iterator[Claim]:
        """Of a job that missed a launcher, and may not go on without it by itself. It waits for a command, and its workers have said already
        that their peers are gone: so it is told at once, and as the loss of the node where that turns out to be silent, too."""
        if event.name != "budget.exhausted" or event.attributes.get("kind") != WENT_ON:
            return
        epoch = integer_attribute(event, "epoch")
        for name in filter(None, event.attributes.get("nodes", "").split(",")):
            self._missed[name] = _Miss(epoch, frame.time)
            if name in frame.reporting and self._silence(name, frame) is None and "agent" not in self._nodes.get(name, _Node()).lost:
                proof = Evidence(text=f"the job stopped without the launcher on {name}, and the agent there reports", event=event.id)
                yield from self._lose_launcher(name, event.time, proof, since=event.time, epoch=epoch)

    def _opened(self, name: str, event: Event) -> Iterator[Claim]:
        """The loss of a launcher is not over then, but with its epoch: that its workers have ended with it is told later."""
        role = event.attributes.get("role", "agent")
        if role == "launcher":
            self._back.add(name)
        node = self._nodes.get(name)
        if node is None:
            return
        node.lost.pop(role, None)
        if role == "launcher":
            self._reopened.add(name)
            node.unreached = node.orphan = None
        else:
            yield from self._claims.withdraw(_entity(name), "node.lost", event.time, "its agent is back")
        if not node.lost:
            self._nodes.pop(name)
            self._vanished.pop(name, None)

    def _watch_layouts(self, frame: Frame) -> None:
        """Nodes that were in the epoch before, and that the coordinator went on without; or whose launcher is another one already, as their session was seen to break."""
        before, layout = self._layout, frame.layout
        self._layout = layout
        if before is None or layout is None or layout.epoch <= before.epoch:
            return
        if layout.reason == WENT_ON:
            self._missed.update(dict.fromkeys(set(before.nodes) - set(layout.nodes), _Miss(layout.epoch - 1, frame.time)))
        replaced = {name for name in self._broke if name in layout.nodes and before.launchers.get(name, "") not in ("", layout.launchers.get(name))}
        self._missed.update(dict.fromkeys(replaced, _Miss(layout.epoch - 1, frame.time, replaced=True)))

    def _watch_clocks(self, frame: Frame) -> None:
        """The youngest that a node's newest batch ever was at a tick: above a batch's second, its clock is behind. A clock that was set back is
        another one."""
        known, time = self._off, frame.time
        set_back = {name for name, newest in frame.reporting.items() if newest < self._newest.get(name, newest)}
        self._newest = dict(frame.reporting)
        self._off = {name: time - newest if name in set_back else min(known.get(name, time - newest), time - newest) for name, newest in frame.reporting.items()}

    def _watch_progress(self, frame: Frame) -> None:
        columns = frame.metrics.get(Kind.WORKER, {})
        known = [columns[name] for name in ("step", "marks") if name in columns]
        here = [float(np.nanmax(values)) for values in known if np.isfinite(values).any()]
        if here and sum(here) != self._progress:
            self._progress, self._moved = sum(here), frame.time

    def _discount_crowds(self, frame: Frame) -> None:
        """Many nodes within one lease time: a switch, a server, a partition; anything but so many dead nodes."""
        if len(self._vanished) < self.crowd_nodes:
            return
        known = len(set(frame.reporting) | set(frame.layout.nodes if frame.layout else ()) | set(self._vanished))
        needed = max(self.crowd_nodes, int(known * self.crowd_share) + 1)
        times = sorted(self._vanished.items(), key=lambda item: (item[1], item[0]))
        for first in range(len(times) - needed + 1):
            if times[first + needed - 1][1] - times[first][1] <= self.lease_s:
                for name, _ in times[first : first + needed]:
                    self._nodes[name].counts = False

    # --- judging

    def _judge(self, name: str, node: _Node, frame: Frame) -> Iterator[Claim]:
        if not node.lost:
            return
        silent = self._silence(name, frame)
        if frame.time - node.heard_at <= 2 * self.lease_s and silent is not None:
            return
        if silent is not None and self._gone(node, frame, silent):
            third = self._third_witness(name, node, frame)
            if third is not None:
                yield from self._lose_node(name, node, silent, third, frame.time)
        elif silent is None and node.orphan is not None and self._launcher_alone(name, node, frame):
            event = node.lost["launcher"]
            if node.orphan.time < event.time - 2 * self.lease_s:  # of a loss before
                return
            proofs = (
                Evidence(text=f"the session of the launcher on {name} is gone", event=event.id),
                Evidence(text=f"the agent on {name} still reports, and says that the launcher has ended", event=node.orphan.id),
            )
            claim = Claim(
                entity=_entity(name), kind="launcher.lost", score=0.95, since=event.time, evidence=proofs
            )
            if (claim.entity, claim.kind) not in self._claims:
                self._ended[name] = frame.time, frame.layout.epoch if frame.layout is not None else 0
            yield from self._claims.report(claim, revise=False)

    def _judge_missed(self, frame: Frame) -> Iterator[Claim]:
        """A node whose agent goes on reporting has lost its launcher alone, and with it the workers there."""
        self._broke = {name: event for name, event in self._broke.items() if frame.time - event.time <= 3 * self.lease_s or name in self._missed}
        for name, (epoch, since, replaced) in list(self._missed.items()):
            entity, silent = _entity(name), self._silence(name, frame)
            if (entity, "node.lost") in self._claims or frame.time - since > 3 * self.lease_s:
                del self._missed[name]
            elif name not in frame.reporting:
                yield from self._judge_unheard(name, epoch, since, frame)
            elif silent is None and frame.time - (self._age(name, frame) or 0.0) > since:  # a batch was written there since
                del self._missed[name]
                how = f"epoch {epoch + 1} has another launcher on {name}" if replaced else f"the job went on, or stopped, without {name} after epoch {epoch}"
                proof = Evidence(text=f"{how}, and the agent there reports")
                yield from self._lose_launcher(name, frame.time, proof, since=since - self.lease_s, epoch=epoch)

    def _judge_unheard(self, name: str, epoch: int, since: float, frame: Frame) -> Iterator[Claim]:
        """Its agent had not reported when it was lost, so that nothing can be silent: the launcher was seen to go, and the job goes on without it."""
        went_on = frame.layout is not None and name not in frame.layout.nodes
        if name not in self._broke or not went_on:
            del self._missed[name]
        elif frame.time - since > self.lease_s:  # the first word of an agent that lives would have come
            del self._missed[name]
            proof = Evidence(text=f"the job went on without {name} after epoch {epoch}, and no agent reports from there")
            yield from self._lose_launcher(name, frame.time, proof, since=since - self.lease_s, epoch=epoch)

    def _lose_launcher(self, name: str, time: float, proof: Evidence, *, since: float, epoch: int) -> Iterator[Claim]:
        """Told once, although it may be back already. `since`: when it was lost, unless its session was seen to break before; `epoch`: in which
        its workers ended, or the one that was begun without them."""
        entity = _entity(name)
        told, _ = self._ended.get(name, (float("-inf"), 0))
        if (entity, "node.lost") in self._claims or time - told <= 3 * self.lease_s:
            return
        self._ended[name] = time, epoch
        broke = self._broke.get(name)
        seen = (Evidence(text=f"the session of the launcher on {name} broke", event=broke.id),) if broke is not None else ()
        began = min(since if broke is None else broke.time, time)
        ended = self._nodes.get(name, _Node()).orphan is not None
        stopped = () if ended else self._states.evidence(name, began)
        yield from self._claims.report(Claim(entity=entity, kind="launcher.lost", score=0.95, since=began, evidence=(*stopped, *seen, proof)), revise=False)

    def _silence(self, name: str, frame: Frame) -> Evidence | None:
        age = self._age(name, frame)
        if age is None or age <= self.silence_s:
            return None
        text = f"no batch of {name} for {age:.1f} s"
        return Evidence(text=text, metric="batch_age_s", value=age, threshold=self.silence_s)

    def _age(self, name: str, frame: Frame) -> float | None:
        """Age of a node's newest batch by our clock: its own may be seconds off."""
        newest = frame.reporting.get(name)
        if newest is None:
            return None
        off = self._off.get(name, 0.0)
        return frame.time - newest - (off if off < 0 else max(0.0, off - 1.0))

    def _gone(self, node: _Node, frame: Frame, silent: Evidence) -> bool:
        """All sessions that the node should have are gone; a node without a job waits two lease times more."""
        if frame.job.startswith("idle/"):
            return "agent" in node.lost and (silent.value or 0.0) > self.silence_s + 2 * self.lease_s
        needed = ROLES if node.had_launcher or "launcher" in node.lost else ("agent",)
        return all(role in node.lost for role in needed)

    def _third_witness(self, name: str, node: _Node, frame: Frame) -> Evidence | None:
        """The training's: nobody may reach the node on Eagle Eye's own network while it trains on.

        In a crowd it counts only against those with whom another launcher lost its session, too.
        """
        if not node.counts and not (node.unreached is not None and self._together(node, node.unreached)):
            return None
        if frame.job.startswith("idle/"):
            return Evidence(text=f"no job on {name} could bear witness; waited two lease times more") if node.counts else None
        layout = frame.layout
        left_out = layout is not None and name not in layout.nodes and any(layout.time > lost.time - 2 * self.lease_s for lost in node.lost.values())
        if self._failed_elsewhere(name, node):  # that explains what the training shows; it is told later, and of its own, that the job goes on without the node
            return self._gone_on(layout, frame) if layout is not None and left_out else None
        broken = self._broken
        if broken is not None and node_of_worker(broken.entity.name) != name and self._together(node, broken):
            return Evidence(text=f"worker {broken.entity.name} saw a peer's connection break", event=broken.id)
        if layout is not None and left_out:
            return Evidence(text=f"epoch {layout.epoch} of the job began without it: {layout.reason}")
        still = frame.time - self._moved
        if still >= self.stall_s and not self._waits:
            text = f"the job has made no progress for {still:.1f} s"
            return Evidence(text=text, metric="still_s", value=still, threshold=self.stall_s)
        return None

    def _gone_on(self, layout: Layout, frame: Frame) -> Evidence | None:
        """The job has trained without the node for long enough."""
        gone_on_s = frame.time - layout.time
        text = f"epoch {layout.epoch} of the job goes on without it"
        return Evidence(text=text, metric=GONE_ON, value=gone_on_s, threshold=2 * self.lease_s) if gone_on_s > 2 * self.lease_s else None

    def _failed_elsewhere(self, name: str, node: _Node) -> bool:
        """A worker of another node has failed by itself since the sessions went."""
        since = min(lost.time for lost in node.lost.values()) - 2 * self.lease_s
        return any(other != name and time >= since for failed in (self._failed, self._failed_before) for other, time in failed.items())

    def _together(self, node: _Node, event: Event) -> bool:
        """An event happened when the sessions went, not minutes before."""
        return any(abs(lost.time - event.time) <= 2 * self.lease_s for lost in node.lost.values())

    def _launcher_alone(self, name: str, node: _Node, frame: Frame) -> bool:
        """The agent has reported after the launcher's session went, and its own session is open."""
        event = node.lost.get("launcher")
        if event is None or "agent" in node.lost or not node.counts:
            return False
        takes_part = frame.layout is not None and name in frame.layout.nodes
        return takes_part and frame.reporting.get(name, 0.0) > event.time

    def _lose_node(self, name: str, node: _Node, silent: Evidence, third: Evidence, now: float) -> Iterator[Claim]:
        entity = _entity(name)
        if (entity, "node.lost") in self._claims:
            return
        lost = sorted(node.lost.values(), key=lambda event: event.time)
        sessions = tuple(
            Evidence(text=f"the session of the {event.attributes.get('role', 'agent')} on {name} is gone", event=event.id)
            for event in lost
        )
        unreached = node.unreached if node.unreached is not None and self._together(node, node.unreached) else None
        times = [now] if third.metric == GONE_ON else [event.time for event in (*lost, unreached) if event is not None]
        score = 0.9 if unreached is None else 0.99
        yield from self._claims.withdraw(entity, "launcher.lost", max(times), "the whole node is lost")
        yield from self._claims.report(
            Claim(entity=entity, kind="node.lost", score=score, since=min(times), evidence=(silent, *sessions, *_seen_by(name, unreached), third))
        )

    def _returned(self, frame: Frame) -> Iterator[Claim]:
        for entity, kind in list(self._claims.open):
            claim = self._claims.open[entity, kind]
            age = self._age(entity.name, frame)
            silent = age is None or age > self.silence_s
            if self._over:
                yield from self._claims.withdraw(entity, kind, frame.time, "the job is over")
            elif kind == "node.lost" and not silent and frame.time > claim.since + 2 * self.silence_s:
                yield from self._claims.withdraw(entity, kind, frame.time, "it reports again")
            elif kind == "launcher.lost" and frame.layout is not None and frame.layout.epoch > self._ended.get(entity.name, (0.0, 0))[1]:
                if entity.name in frame.layout.nodes:
                    yield from self._claims.withdraw(entity, kind, frame.time, "it takes part in the job again")
                elif entity.name in self._back:
                    yield from self._claims.withdraw(entity, kind, frame.time, "its session is open again")


def _seen_by(name: str, unreached: Event | None) -> tuple[Evidence, ...]:
    if unreached is None:
        return ()
    by = unreached.attributes.get("seen_by", unreached.node)
    return (Evidence(text=f"the launcher on {by} lost its session with that on {name}", event=unreached.id),)


def _entity(node: str) -> Entity:
    return Entity(kind=Kind.NODE, name=node)


