"""A node is lost when three witnesses agree, and never before."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.liveness import Liveness
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Event, Kind
from fakes.synthetic_events import claims_of, cut_frame, event, job, node, with_events, worker
from fakes.synthetic_frames import BEGAN, SilentNode, job_frames

LOST = "node-1"


def ticks(nodes: int = 2, count: int = 12, silent: tuple[str, ...] = (), begin: int = 5) -> list[Frame]:
    faults = [SilentNode(name, begin) for name in silent]
    return list(job_frames(nodes, 2, count, np.random.default_rng(0), faults=faults))


def sessions(name: str, time: float, *roles: str, opened: bool = False) -> tuple[Event, ...]:
    said = "session.opened" if opened else "session.lost"
    return tuple(event(said, node(name), time, role=role) for role in roles)


def peer(name: str, time: float) -> Event:
    return event("peer.lost", node(name), time, seen_by="node-0")


def told(frames: list[Frame], at: float, *events: Event) -> Iterator[Frame]:
    """The ticks with a cut frame in between that holds the events."""
    cut = False
    for frame in frames:
        if not cut and frame.time > at:
            cut = True
            yield cut_frame(at, *events, layout=frame.layout)
        yield frame


def reporting(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Cuts know, as ticks do, who has reported so far."""
    known: Mapping[str, float] = {}
    for frame in frames:
        known = frame.reporting or known
        yield replace(frame, reporting=known)


def kinds(claims: list[Claim]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for claim in claims]


def reset(time: float) -> Event:
    """A survivor's connection to a worker there broke."""
    return event("exception", worker("node-0", 0), time, type="RuntimeError", message="Connection closed by peer")


def test_fault_a_killed_node_is_lost_within_three_seconds() -> None:
    killed = BEGAN + 5.05  # its last batch came just before
    frames = told(ticks(silent=(LOST,)), killed, *sessions(LOST, killed, "agent", "launcher"), peer(LOST, killed), reset(killed))
    detector = Liveness()
    found = next((frame.time, claim) for frame in frames for claim in detector.update(frame))
    time, claim = found
    assert kinds([claim]) == [("node.lost", LOST, True)]
    assert time - killed <= 3.0
    assert claim.since == killed
    assert len(claim.evidence) == 5


def frozen(frame: Frame) -> Frame:
    """No worker gets on."""
    workers = dict(frame.metrics[Kind.WORKER])
    for name in ("step", "marks"):
        workers[name] = np.where(np.isnan(workers[name]), workers[name], np.float32(7))
    return replace(frame, metrics={**frame.metrics, Kind.WORKER: workers})


def test_the_job_standing_still_is_a_third_witness_too() -> None:
    frames = [frozen(frame) if frame.time > BEGAN + 5 else frame for frame in ticks(silent=(LOST,))]
    claims = claims_of(Liveness(), told(frames, BEGAN + 5.1, *sessions(LOST, BEGAN + 5.1, "agent", "launcher")))
    assert kinds(claims) == [("node.lost", LOST, True)]
    assert "has made no progress" in claims[0].evidence[-1].text


def test_twin_a_job_that_backs_off_bears_no_witness_by_standing_still() -> None:
    frames = [frozen(frame) if frame.time > BEGAN + 5 else frame for frame in ticks(silent=(LOST,))]
    waits = event("restart.delayed", job(), BEGAN + 5.05, seconds="60", epoch=1)
    claims = claims_of(Liveness(), told(frames, BEGAN + 5.1, waits, *sessions(LOST, BEGAN + 5.1, "agent", "launcher")))
    assert kinds(claims) == []
    begun = event("epoch.started", job(), BEGAN + 5.08, epoch=2)
    claims = claims_of(Liveness(), told(frames, BEGAN + 5.1, waits, begun, *sessions(LOST, BEGAN + 5.1, "agent", "launcher")))
    assert kinds(claims) == [("node.lost", LOST, True)], "once it runs it does again"


@pytest.mark.parametrize(
    ("name", "silent", "events"),
    [
        ("stream away: batches alone stop", (LOST,), ()),
        ("server restarted: sessions alone break", (), (*sessions(LOST, BEGAN + 5.1, "agent"), peer(LOST, BEGAN + 5.1))),
        ("agent dead: batches and its session, the job goes on", (LOST,), sessions(LOST, BEGAN + 5.1, "agent")),
        ("a peer's connection alone", (LOST,), (peer(LOST, BEGAN + 5.1),)),
        ("two witnesses: the job goes on", (LOST,), sessions(LOST, BEGAN + 5.1, "agent", "launcher")),
        ("Eagle Eye's own network is cut", (LOST,), (*sessions(LOST, BEGAN + 5.1, "agent", "launcher"), peer(LOST, BEGAN + 5.1))),
    ],
)
def test_twin_one_or_two_witnesses_are_not_enough(name: str, silent: tuple[str, ...], events: tuple[Event, ...]) -> None:
    assert kinds(claims_of(Liveness(), told(ticks(silent=silent), BEGAN + 5.1, *events))) == [], name


def test_twin_a_dead_agent_in_a_job_that_stands_still_is_no_dead_node_while_the_launcher_is_there() -> None:
    frames = [frozen(frame) if frame.time > BEGAN + 5 else frame for frame in ticks(silent=(LOST,))]
    assert kinds(claims_of(Liveness(), told(frames, BEGAN + 5.1, *sessions(LOST, BEGAN + 5.1, "agent")))) == []


def test_a_node_that_reports_again_is_not_lost_any_more() -> None:
    killed = BEGAN + 5.05
    gone = (*sessions(LOST, killed, "agent", "launcher"), reset(killed))
    frames = list(told(ticks(count=10, silent=(LOST,)), killed, *gone))
    healthy = [frame for frame in ticks(count=16) if frame.time > frames[-1].time]
    back = with_events(healthy[0], *sessions(LOST, healthy[0].time, "agent", opened=True))
    claims = claims_of(Liveness(), [*frames, back, *healthy[1:]])
    assert kinds(claims)[:2] == [("node.lost", LOST, True), ("node.lost", LOST, False)]
    again = claims_of(Liveness(), [*frames, *healthy])
    assert "reports again" in again[1].evidence[-1].text


def orphan(time: float) -> Event:
    """A worker there has ended with its launcher, as the agent says."""
    return msgspec.structs.replace(event("exit", worker(LOST, 0), time, code="-9", signal="SIGKILL", launcher="ended"), node=LOST)


def test_fault_a_launcher_alone_is_lost_once_its_agent_says_that_it_has_ended() -> None:
    events = (*sessions(LOST, BEGAN + 5.1, "launcher"), peer(LOST, BEGAN + 5.1), orphan(BEGAN + 5.2))
    opened = sessions(LOST, BEGAN + 8.5, "launcher", opened=True)
    frames = list(told(list(told(ticks(), BEGAN + 5.1, *events)), BEGAN + 8.5, *opened))
    assert kinds(claims_of(Liveness(), frames)) == [("launcher.lost", LOST, True)], "its workers have ended with it"
    [layout] = {id(frame.layout): frame.layout for frame in frames if frame.layout is not None}.values()
    spare = msgspec.structs.replace(layout, epoch=layout.epoch + 1, placements=tuple(each for each in layout.placements if each.node != LOST))
    for begun, why in ((msgspec.structs.replace(layout, epoch=layout.epoch + 1), "over: it takes part in the job again"), (spare, "over: its session is open again")):
        lost, over = claims_of(Liveness(), [replace(frame, layout=begun) if frame.time > BEGAN + 9 else frame for frame in frames])
        assert kinds([lost, over]) == [("launcher.lost", LOST, True), ("launcher.lost", LOST, False)]
        assert over.evidence[-1].text == why
    away = [frame for frame in frames if not any(each.name == "session.opened" for each in frame.events)]
    assert kinds(claims_of(Liveness(), [replace(frame, layout=spare) if frame.time > BEGAN + 9 else frame for frame in away])) == [("launcher.lost", LOST, True)]


def test_twin_a_launcher_that_does_not_answer_is_not_lost_while_its_workers_live() -> None:
    gone = (*sessions(LOST, BEGAN + 5.1, "launcher"), peer(LOST, BEGAN + 5.1))
    assert kinds(claims_of(Liveness(), told(ticks(), BEGAN + 5.1, *gone))) == []
    killed = event("exit", worker(LOST, 0), BEGAN + 5.2, code="-9", signal="SIGKILL")
    frames = [frozen(frame) if frame.time > BEGAN + 5 else frame for frame in ticks()]
    assert kinds(claims_of(Liveness(), told(frames, BEGAN + 5.3, *gone, killed, reset(BEGAN + 5.25)))) == [], "another worker's death is that worker's"


def test_an_epoch_that_began_without_the_node_is_a_third_witness_too() -> None:
    events = sessions(LOST, BEGAN + 5.1, "agent", "launcher")
    frames = ticks(silent=(LOST,))
    [layout] = {id(frame.layout): frame.layout for frame in frames if frame.layout is not None}.values()
    without = msgspec.structs.replace(
        layout, epoch=layout.epoch + 1, time=BEGAN + 6.5, reason="node lost", placements=tuple(each for each in layout.placements if each.node != LOST)
    )
    later = [replace(frame, layout=without) if frame.time > BEGAN + 6.5 else frame for frame in frames]
    claims = claims_of(Liveness(), told(later, BEGAN + 5.1, *events))
    assert kinds(claims) == [("node.lost", LOST, True)]
    assert claims[0].evidence[-1].text == f"epoch {without.epoch} of the job began without it: node lost"


def test_twin_a_node_whose_launcher_still_writes_is_alive_whatever_it_cannot_reach() -> None:
    gone = (*sessions(LOST, BEGAN + 5.1, "agent", "launcher"), peer(LOST, BEGAN + 5.1))
    died = msgspec.structs.replace(event("exit", worker(LOST, 0), BEGAN + 7.5, code="-9", signal="SIGKILL"), node=LOST)
    frames = list(told(ticks(count=24, silent=(LOST,)), BEGAN + 5.1, *gone))
    assert kinds(claims_of(Liveness(), told(frames[:13], BEGAN + 7.5, died, reset(BEGAN + 7.5)))) == []
    assert kinds(claims_of(Liveness(), told(frames[:13], BEGAN + 7.5, reset(BEGAN + 7.5)))) == [("node.lost", LOST, True)]
    assert kinds(claims_of(Liveness(), told(frames, BEGAN + 7.5, died, reset(BEGAN + 7.5)))) == [("node.lost", LOST, True)], "two leases without a word"


@pytest.mark.parametrize(
    "failure", [event("exception", worker("node-0", 1), BEGAN + 7.0, type="ValueError", message="negative length"), event("exit", worker("node-0", 1), BEGAN + 7.0, code="-9", signal="SIGKILL")]
)
def test_twin_another_workers_failure_is_not_the_fault_of_a_node_out_of_sight(failure: Event) -> None:
    gone = (*sessions(LOST, BEGAN + 5.1, "agent", "launcher"), peer(LOST, BEGAN + 5.1))
    frames = ticks(count=24, silent=(LOST,))
    [layout] = {id(frame.layout): frame.layout for frame in frames if frame.layout is not None}.values()
    without = msgspec.structs.replace(
        layout, epoch=layout.epoch + 1, time=BEGAN + 8.0, reason="node lost", placements=tuple(each for each in layout.placements if each.node != LOST)
    )
    later = [replace(frame, layout=without) if frame.time > BEGAN + 8.0 else frame for frame in frames]
    begun = event("epoch.started", job(), BEGAN + 8.1, epoch=without.epoch, reason="node lost")
    seen = list(told(list(told(list(told(later, BEGAN + 5.1, *gone)), BEGAN + 7.0, failure, reset(BEGAN + 7.05))), BEGAN + 8.1, begun))
    early = [frame for frame in seen if frame.time < BEGAN + 13.0]
    assert kinds(claims_of(Liveness(), early)) == []
    [claim] = claims_of(Liveness(), seen)
    assert (claim.kind, claim.evidence[-1].text) == ("node.lost", f"epoch {without.epoch} of the job goes on without it")
    assert claim.since > without.time, "what failed before did not follow from it"


def test_twin_launchers_and_agents_of_a_finished_job_may_leave() -> None:
    done = event("job.finished", job(), BEGAN + 5.0)
    events = (done, *sessions(LOST, BEGAN + 5.1, "agent", "launcher"), peer(LOST, BEGAN + 5.1))
    assert kinds(claims_of(Liveness(), told(ticks(silent=(LOST,)), BEGAN + 5.1, *events))) == []


def test_many_nodes_at_once_are_a_switch_only_those_that_peers_saw_die_are_lost() -> None:
    names = tuple(f"node-{index}" for index in range(4))
    events = [each for name in names for each in sessions(name, BEGAN + 5.1, "agent", "launcher")]
    frames = [frozen(frame) if frame.time > BEGAN + 5 else frame for frame in ticks(nodes=20, silent=names)]
    cut = told(frames, BEGAN + 5.1, *events, peer("node-2", BEGAN + 5.1))
    assert kinds(claims_of(Liveness(), cut)) == [("node.lost", "node-2", True)]


def test_two_nodes_of_two_are_no_crowd() -> None:
    names = ("node-0", "node-1")
    events = [each for name in names for each in sessions(name, BEGAN + 5.1, "agent", "launcher")]
    frames = [frozen(frame) if frame.time > BEGAN + 5 else frame for frame in ticks(silent=names)]
    claims = claims_of(Liveness(), told(frames, BEGAN + 5.1, *events))
    assert {claim.entity.name for claim in claims} == set(names)


def test_a_node_without_a_job_is_lost_on_two_witnesses_after_two_lease_times_more() -> None:
    idle = [replace(frame, job="idle/node-1", layout=None) for frame in ticks(count=20, silent=(LOST,))]
    frames = told(idle, BEGAN + 5.1, *sessions(LOST, BEGAN + 5.1, "agent"))
    detector = Liveness()
    times = [frame.time - BEGAN for frame in (replace(each, job="idle/node-1") for each in frames) for _ in detector.update(frame)]
    assert len(times) == 1
    assert times[0] > 5.0 + detector.silence_s + 2 * detector.lease_s


def test_a_node_whose_clock_is_minutes_off_is_not_silent() -> None:
    frames = [replace(frame, reporting={**frame.reporting, LOST: frame.reporting[LOST] - 300}) for frame in ticks()]
    events = (*sessions(LOST, BEGAN + 5.1, "agent", "launcher"), peer(LOST, BEGAN + 5.1))
    assert kinds(claims_of(Liveness(), told(frames, BEGAN + 5.1, *events))) == []


def test_a_broken_connection_of_a_survivor_is_a_witness() -> None:
    frames = told(ticks(silent=(LOST,)), BEGAN + 5.3, *sessions(LOST, BEGAN + 5.1, "agent", "launcher"), reset(BEGAN + 5.2))
    assert kinds(claims_of(Liveness(), frames)) == [("node.lost", LOST, True)]


def test_with_the_job_the_loss_of_its_node_is_over() -> None:
    killed = BEGAN + 5.05
    gone = (*sessions(LOST, killed, "agent", "launcher"), reset(killed))
    frames = list(told(ticks(silent=(LOST,)), killed, *gone))
    done = cut_frame(frames[-1].time + 1, event("job.finished", job(), frames[-1].time + 1))
    assert kinds(claims_of(Liveness(), [*frames, done])) == [("node.lost", LOST, True), ("node.lost", LOST, False)]


def went_on(frames: list[Frame], at: float, *, back: float = float("inf")) -> Iterator[Frame]:
    """From that time on the job runs without LOST, as its coordinator has begun an epoch without it; then with it again."""
    first = frames[0].layout
    assert first is not None
    without = tuple(place for place in first.placements if place.node != LOST)
    fewer = msgspec.structs.replace(first, epoch=first.epoch + 1, reason="node lost", time=at, placements=without)
    again = msgspec.structs.replace(first, epoch=first.epoch + 2, reason="node returned", time=back)
    for frame in frames:
        yield frame if frame.time < at else replace(frame, layout=fewer if frame.time < back else again)


def test_fault_a_launcher_without_which_the_job_went_on_is_told_although_it_was_back_at_once() -> None:
    died = BEGAN + 5.02
    events = (peer(LOST, died), *sessions(LOST, died, "launcher"), *sessions(LOST, died + 0.05, "launcher", opened=True))
    claims = claims_of(Liveness(), went_on(list(told(ticks(), died + 0.06, *events)), died + 0.1, back=died + 1.0))
    assert kinds(claims) == [("launcher.lost", LOST, True), ("launcher.lost", LOST, False)]
    assert claims[0].since == died
    assert "without node-1 after epoch 1" in claims[0].evidence[-1].text


@pytest.mark.parametrize("back", [True, False])
def test_its_loss_is_over_when_it_is_a_spare(back: bool) -> None:
    """Another node has taken its place: no further epoch comes."""
    died = BEGAN + 5.02
    opened = sessions(LOST, died + 0.05, "launcher", opened=True) if back else ()
    events = (peer(LOST, died), *sessions(LOST, died, "launcher"), *opened)
    claims = claims_of(Liveness(), went_on(list(told(ticks(), died + 0.06, *events)), died + 0.1, back=died + 100.0))
    assert kinds(claims) == [("launcher.lost", LOST, True), ("launcher.lost", LOST, False)][: 2 if back else 1]


def test_twin_an_end_that_was_told_long_ago_accuses_no_launcher_that_does_not_answer_now() -> None:
    """It was of the launcher before, and told when the next one was there already."""
    frames = list(told(list(told(ticks(count=24), BEGAN + 2.1, orphan(BEGAN + 2.0))), BEGAN + 18.1, *sessions(LOST, BEGAN + 18.1, "launcher")))
    [layout] = {id(frame.layout): frame.layout for frame in frames if frame.layout is not None}.values()
    again = msgspec.structs.replace(layout, epoch=layout.epoch + 1, reason="node returned")
    claims = claims_of(Liveness(), [replace(frame, layout=again) if frame.time > BEGAN + 3 else frame for frame in frames])
    assert [(claim.since, claim.active) for claim in claims] == [(BEGAN + 2.0, True), (BEGAN + 2.0, False)], "that one, and no other"


def test_what_is_told_late_began_when_the_session_broke() -> None:
    """As on a busy machine, whose coordinator begins the next epoch late, and whose agent reports late."""
    died = BEGAN + 5.02
    claims = claims_of(Liveness(lease_s=1.0), went_on(list(told(ticks(), died, peer(LOST, died), reset(died))), died + 2.9, back=died + 6.0))
    assert kinds(claims)[0] == ("launcher.lost", LOST, True)
    assert claims[0].since == died


def test_it_began_when_the_first_of_its_sessions_broke() -> None:
    """A peer sees that at once, a busy server later; once the session is open again the next break is another one."""
    died = BEGAN + 5.02
    events = (peer(LOST, died), reset(died), *sessions(LOST, died + 1.1, "launcher"))
    claims = claims_of(Liveness(), went_on(list(told(ticks(), died + 1.2, *events)), died + 1.3, back=died + 3.0))
    assert (kinds(claims)[0], claims[0].since) == (("launcher.lost", LOST, True), died)
    before = (peer(LOST, died - 1.0), *sessions(LOST, died - 1.0, "launcher"), *sessions(LOST, died - 0.5, "launcher", opened=True))
    claims = claims_of(Liveness(), went_on(list(told(ticks(), died + 1.2, *before, *events)), died + 1.3, back=died + 3.0))
    assert claims[0].since == died


def begun_with_all(frames: list[Frame], at: float, *, address: str, reason: str = "node lost") -> Iterator[Frame]:
    """Of the epoch that began behind the loss none is missing: the node is back, with a launcher at this address."""
    first = frames[0].layout
    assert first is not None
    after = msgspec.structs.replace(first, epoch=first.epoch + 2, reason=reason, time=at, launchers={**first.launchers, LOST: address or first.launchers[LOST]})
    return (replace(frame, layout=after if frame.time >= at else first) for frame in frames)


@pytest.mark.parametrize("reason", ["node lost", "death"])
def test_fault_a_launcher_that_another_one_has_replaced_before_the_job_went_on_without_it_is_told(reason: str) -> None:
    """Its workers had just been started: no agent had seen them, and nobody told their end. Where all launchers are back, the epoch is begun for the worker that had died before."""
    died = BEGAN + 5.2
    frames = begun_with_all(list(told(ticks(), died, peer(LOST, died), reset(died))), died + 1.3, address="127.0.0.1:9", reason=reason)
    first, last = claims_of(Liveness(), frames)
    assert kinds([first, last]) == [("launcher.lost", LOST, True), ("launcher.lost", LOST, False)]
    assert first.since == died, "when its session broke, so that what its peers saw follows from it"
    assert "epoch 3 has another launcher on node-1" in first.evidence[-1].text


@pytest.mark.parametrize("seen", [True, False])
def test_twin_a_launcher_whose_session_broke_and_who_is_the_same_has_not_ended(seen: bool) -> None:
    died = BEGAN + 5.2
    events = (peer(LOST, died), reset(died)) if seen else (reset(died),)
    assert claims_of(Liveness(), begun_with_all(list(told(ticks(), died, *events)), died + 1.3, address="" if seen else "127.0.0.1:9")) == []


def test_fault_the_same_for_a_coordinator_whose_end_nobody_wrote_down() -> None:
    claims = claims_of(Liveness(), went_on(ticks(), BEGAN + 5.1, back=BEGAN + 9.1))
    assert kinds(claims) == [("launcher.lost", LOST, True), ("launcher.lost", LOST, False)]
    assert claims[0].since < BEGAN + 5.1


@pytest.mark.parametrize(
    ("kind", "found"),
    [("node lost", [("launcher.lost", LOST, True)]), ("worker ended by SIGKILL", [])],
    ids=["fault", "twin that stopped for another reason"],
)
def test_a_launcher_without_which_the_job_stopped_is_told_although_it_was_back_at_once(kind: str, found: list[tuple[str, str, bool]]) -> None:
    """It may not heal itself, so that no epoch begins; and the leader is too young to tell that a session ended."""
    died = BEGAN + 5.02
    spent = event("budget.exhausted", job(), died + 0.1, kind=kind, epoch=1, nodes=LOST)
    frames = list(reporting(told(ticks(), died + 0.2, peer(LOST, died), spent)))
    at_once = [frame for frame in frames if frame.time <= died + 0.2]
    for seen in (at_once, frames):
        claims = claims_of(Liveness(), seen)
        assert kinds(claims) == found
        assert not found or claims[0].since == died


def test_a_node_that_died_with_it_is_told_as_lost_once_it_is_silent() -> None:
    died = BEGAN + 5.02
    spent = event("budget.exhausted", job(), died + 0.1, kind="node lost", epoch=1, nodes=LOST)
    gone = (reset(died), *sessions(LOST, died, "agent", "launcher"))
    frames = reporting(told(list(told(ticks(silent=(LOST,)), died + 0.2, peer(LOST, died), spent)), died + 1.0, *gone))
    assert kinds(claims_of(Liveness(), frames)) == [("launcher.lost", LOST, True), ("launcher.lost", LOST, False), ("node.lost", LOST, True)]


def test_fault_workers_that_end_after_their_launcher_prove_its_loss_at_once() -> None:
    """Its session is not known to have broken: the leader is too young, or the coordinator was the launcher itself."""
    orphans = [event("exit", worker(LOST, slot), BEGAN + 5.1 + slot / 100, of=LOST, launcher="ended", code="") for slot in (0, 1)]
    frames = list(went_on(list(told(ticks(), BEGAN + 5.2, *orphans)), BEGAN + 5.3, back=BEGAN + 7.5))
    claims = claims_of(Liveness(), frames)
    assert kinds(claims) == [("launcher.lost", LOST, True), ("launcher.lost", LOST, False)]
    assert claims[0].since == BEGAN + 5.1
    assert "has ended, and its launcher before it" in claims[0].evidence[0].text
    assert "takes part in the job again" in claims[1].evidence[-1].text


def test_twin_a_worker_that_its_launcher_reports_proves_nothing_against_that() -> None:
    ended = event("exit", worker(LOST, 0), BEGAN + 5.1, code="1")
    assert kinds(claims_of(Liveness(), told(ticks(), BEGAN + 5.2, ended))) == []


def test_twin_a_node_that_died_is_told_once_as_a_node() -> None:
    killed = BEGAN + 5.05
    gone = (*sessions(LOST, killed, "agent", "launcher"), peer(LOST, killed))
    claims = claims_of(Liveness(), went_on(list(told(ticks(silent=(LOST,)), killed, *gone)), killed + 2.0))
    assert kinds(claims) == [("node.lost", LOST, True)]


def test_twin_a_node_that_was_evicted_has_lost_no_launcher() -> None:
    evicted = (replace(frame, layout=msgspec.structs.replace(frame.layout, reason="command")) for frame in went_on(ticks(), BEGAN + 5.1))
    assert kinds(claims_of(Liveness(), evicted)) == []


def unheard(frames: Iterable[Frame]) -> Iterator[Frame]:
    """The agent of LOST had not come so far that it reported."""
    for frame in frames:
        yield replace(frame, reporting={name: time for name, time in frame.reporting.items() if name != LOST})


def test_fault_a_launcher_that_went_before_its_agent_had_reported_is_told_once_the_job_has_gone_on_without_it() -> None:
    """As where a server, its agents and a job begin together: nothing can be silent that was never heard."""
    died = BEGAN + 5.02
    events = (peer(LOST, died), *sessions(LOST, died + 0.5, "launcher"))
    claims = claims_of(Liveness(), unheard(went_on(list(told(ticks(), died + 0.6, *events)), died + 0.7)))
    assert kinds(claims) == [("launcher.lost", LOST, True)]
    assert "no agent reports from there" in claims[0].evidence[-1].text


def test_twin_a_job_without_agents_that_goes_on_with_all_its_nodes_has_lost_nobody() -> None:
    died = BEGAN + 5.02
    back = (*sessions(LOST, died, "launcher"), *sessions(LOST, died + 0.2, "launcher", opened=True))
    assert kinds(claims_of(Liveness(), unheard(told(ticks(), died + 0.3, peer(LOST, died), *back)))) == []
    evicted = (replace(frame, layout=msgspec.structs.replace(frame.layout, reason="command")) for frame in went_on(list(told(ticks(), died + 0.3, peer(LOST, died))), died + 0.5))
    assert kinds(claims_of(Liveness(), unheard(evicted))) == []
