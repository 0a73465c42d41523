"""Diagnosis: one fault, one incident, the right culprit; through all detectors, from frames as they come."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.diagnosis.causes import CAUSES
from eagle_eye.frames import Frame
from eagle_eye.types import Entity, Event, Evidence, Finding, Incident, Kind, Mark, Severity
from fakes.diagnosis_chain import LAYOUT, RESET, TOPOLOGY, Chain, raised, verdicts
from fakes.synthetic_events import cut_frame, event, job, node, with_events, worker
from fakes.synthetic_frames import BEGAN, JOB, Draft, FrozenWorker, SilentNode, SlowWorker, job_frames

NOW = BEGAN + 6.0
A, B, C, D = (worker(name, slot) for name in ("node-0", "node-1") for slot in (0, 1))
ILLEGAL = "CUDA error: an illegal memory access was encountered"


def healthy(count: int = 6) -> list[Frame]:
    return list(job_frames(2, 2, count, np.random.default_rng(0)))


def cut(time: float, *events: Event) -> Frame:
    return cut_frame(time, *events, layout=LAYOUT)


def killed(who: Entity, time: float, epoch: int = 1) -> Event:
    return event("exit", who, time, code=-9, signal="SIGKILL", epoch=epoch, rank=1, step=12)


def left(who: Entity, time: float, **more: object) -> Event:
    return event("exit", who, time, **{"code": 1, "signal": "", "epoch": 1, "exception": "RuntimeError", **more})


def begun(time: float, epoch: int = 2) -> Event:
    return event("epoch.started", job(), time, epoch=epoch, reason="death")


def stall(who: Entity, time: float, phase: str, marks: int, state: str = "S", age_s: float = 1.2) -> Event:
    activity = "awaits peers" if phase == "communication" else "hung"
    return event("stall", who, time, step=12, marks=marks, step_marks=marks, phase=phase, age_s=age_s, state=state, epoch=1, activity=activity)


# --- a worker dies -----------------------------------------------------------------------------------------------


def test_a_killed_worker_is_named_after_one_cut_frame() -> None:
    chain = Chain().feed(*healthy(), cut(NOW, killed(B, NOW - 0.01)))
    assert verdicts(chain.reported) == [("worker killed", [B.name], Severity.SEV2, True)]
    (incident,) = chain.reported
    assert incident.since == NOW - 0.01
    assert incident.evidence[0].event == killed(B, NOW - 0.01).id
    assert incident.rivals


def test_three_victims_of_a_kill_are_consequences_whatever_comes_first() -> None:
    cries = [raised(who, NOW + 0.02 + 0.01 * index) for index, who in enumerate((A, C, D))]
    ends = [left(who, NOW + 0.3 + 0.01 * index) for index, who in enumerate((A, C, D))]
    death = killed(B, NOW)
    orders = (
        [[death], cries, ends],
        [[cries[0]], [death, *cries[1:]], ends],
        [cries, ends[:1], [death], ends[1:]],
    )
    for order in orders:
        frames = [cut(NOW + 0.1 * (index + 1), *events) for index, events in enumerate(order)]
        chain = Chain().feed(*healthy(), *frames)
        assert verdicts(chain.latest) == [("worker killed", [B.name], Severity.SEV2, True)], order
        assert all(not each.culprits or each.culprits[0].entity == B for each in chain.reported)
        assert len(chain.latest[0].findings) == 7
        over = chain.feed(cut(NOW + 1, begun(NOW + 1)))
        assert verdicts(over.latest) == [("worker killed", [B.name], Severity.SEV2, False)]


def test_connections_that_break_without_a_death_accuse_nobody() -> None:
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, raised(A, NOW), raised(C, NOW)), cut(NOW + 0.5, left(A, NOW + 0.3)))
    assert verdicts(chain.latest) == [("network error", [], Severity.SEV3, True)]


def test_a_second_death_later_is_another_incident_and_two_at_once_are_one() -> None:
    chain = Chain().feed(*healthy(), cut(NOW, killed(B, NOW)), cut(NOW + 1, begun(NOW + 1)))
    chain.feed(cut(NOW + 4, killed(C, NOW + 4, epoch=2)))
    assert verdicts(chain.latest) == [
        ("worker killed", [B.name], Severity.SEV2, False),
        ("worker killed", [C.name], Severity.SEV2, True),
    ]
    twins = Chain().feed(*healthy(), cut(NOW, killed(B, NOW)), cut(NOW + 0.1, killed(C, NOW + 0.02)))
    assert verdicts(twins.latest) == [("worker killed", [B.name, C.name], Severity.SEV2, True)]


def test_a_death_and_its_cure_in_one_frame_leave_a_closed_incident_that_names_it() -> None:
    """A flood after the stream was away."""
    chain = Chain().feed(cut(NOW + 30, killed(B, NOW), raised(A, NOW + 0.1), begun(NOW + 1)))
    assert verdicts(chain.reported) == [("worker killed", [B.name], Severity.SEV2, False)]


def test_a_death_that_is_reported_after_its_cure_leaves_a_closed_incident_that_names_it() -> None:
    chain = Chain().feed(*healthy(), cut(NOW + 1, begun(NOW + 1)), cut(NOW + 2, killed(B, NOW)), cut(NOW + 2.1, raised(A, NOW + 0.1)))
    assert verdicts(chain.reported) == [("worker killed", [B.name], Severity.SEV2, False)]


def test_a_death_that_is_told_long_after_its_victims_cried_is_what_they_missed() -> None:
    """The launcher of its node was stopped: it tells when the worker died, and not when it saw it."""
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, raised(C, NOW + 0.05), raised(D, NOW + 0.05)), cut(NOW + 0.6, begun(NOW + 0.6)))
    assert verdicts(chain.latest) == [("network error", [], Severity.SEV3, True)]
    chain.feed(cut(NOW + 4.0, killed(A, NOW)))
    assert verdicts(chain.latest)[0] == ("worker killed", [A.name], Severity.SEV2, False)
    assert len({each.id for each in chain.reported}) == 1


def test_the_first_to_crash_is_named_those_that_end_after_it_are_not() -> None:
    chain = Chain().feed(*healthy(), cut(NOW + 1, left(D, NOW, exception=""), left(A, NOW + 0.6, code=2, exception="")))
    assert verdicts(chain.latest) == [("worker exited", [D.name], Severity.SEV2, True)]


def test_a_program_that_fails_everywhere_accuses_no_machine() -> None:
    same = [raised(who, NOW + 0.01 * index, f"too many values ({index})", "ValueError") for index, who in enumerate((A, B, C, D))]
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, *same))
    assert verdicts(chain.latest) == [("exception", [], Severity.SEV2, True)]
    alike = [left(who, NOW + 0.01 * index, exception="") for index, who in enumerate((A, B, C, D))]
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, *alike))
    assert verdicts(chain.latest) == [("worker exited", [], Severity.SEV2, True)]


@pytest.mark.parametrize("who", [(A, C), (A, B)])
def test_a_mistake_of_the_script_that_several_workers_make_at_once_accuses_none_of_them(who: tuple[Entity, ...]) -> None:
    """The others were ended before they could say the same."""
    same = [raised(each, NOW + 0.02 * index, f"index {index} is out of range", "IndexError") for index, each in enumerate(who)]
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, *same), cut(NOW + 0.2, raised(D, NOW + 0.1)))
    assert verdicts(chain.latest) == [("exception", [], Severity.SEV2, True)]


def test_twin_one_workers_exception_names_it_whatever_its_victims_say_alike() -> None:
    first = raised(B, NOW, "index 7 is out of range", "IndexError")
    victims = [raised(each, NOW + 0.05, message) for message in (RESET, "the loop broke off") for each in (A, C, D)]
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, first, *victims))
    assert verdicts(chain.latest) == [("exception", [B.name], Severity.SEV2, True)]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("KeyError", "'infiniband'"),
        ("ValueError", "column 'broken pipe' is missing"),
        ("ConnectionRefusedError", "[Errno 111] Connection refused"),
        ("TimeoutError", "The read operation timed out"),
    ],
)
def test_an_exception_of_the_script_whose_words_are_the_networks_is_its_own(kind: str, message: str) -> None:
    told = raised(B, NOW, message, kind)
    by_the_script = event("exception", B, NOW, **{**told.attributes, "frame": "train.py:212 in load"})
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, by_the_script, *(raised(each, NOW + 0.05) for each in (A, C, D))))
    assert verdicts(chain.latest) == [("exception", [B.name], Severity.SEV2, True)]


def test_twin_what_only_broken_hardware_says_names_all_that_say_it() -> None:
    ecc = "CUDA error: uncorrectable ECC error encountered"
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, *(raised(each, NOW, ecc, "torch.AcceleratorError") for each in (A, C))))
    assert [(each.cause, {culprit.entity for culprit in each.culprits}) for each in chain.latest] == [("ecc error", {A, C})]


# --- exceptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "cause", "severity"),
    [
        (ILLEGAL, "illegal memory access", Severity.SEV2),
        ("CUDA error: uncorrectable ECC error encountered", "ecc error", Severity.SEV1),
        ("CUDA error: uncorrectable NVLink error detected during the execution", "nvlink error", Severity.SEV1),
        ("CUDA out of memory", "out of memory", Severity.SEV2),
        ("CUDA error: unspecified launch failure", "cuda error", Severity.SEV2),
    ],
)
def test_a_cuda_error_with_victims_names_who_raised_it(message: str, cause: str, severity: Severity) -> None:
    frames = (
        cut(NOW + 0.02, raised(C, NOW, message, "torch.AcceleratorError")),
        cut(NOW + 0.1, raised(A, NOW + 0.05), raised(D, NOW + 0.05, "the loop broke off", "ValueError")),
        cut(NOW + 0.6, left(C, NOW + 0.4), left(A, NOW + 0.5), left(D, NOW + 0.5)),
    )
    chain = Chain().feed(*healthy(), *frames)
    assert verdicts(chain.reported[:1]) == verdicts(chain.latest) == [(cause, [C.name], severity, True)]


def test_an_xid_of_the_gpu_outranks_the_exceptions_on_its_node() -> None:
    topology = msgspec.structs.replace(TOPOLOGY, gpus={"GPU-1": "node-1"})
    fell = event("gpu.xid", Entity(kind=Kind.GPU, name="GPU-1"), NOW + 0.5, code=79)
    chain = Chain().feed(*healthy(), cut(NOW, raised(C, NOW, ILLEGAL)))
    mark = Mark(mark="cut", generation=1, number=99, time=NOW + 0.6)
    chain.take(Diagnosis().diagnose(tuple(chain.opened.values()), chain.panel.evaluate(cut(NOW + 0.6, fell), mark), topology))
    assert verdicts(chain.latest) == [("gpu fault", ["GPU-1"], Severity.SEV1, True)]


# --- nobody moves ------------------------------------------------------------------------------------------------


def test_a_stopped_worker_is_named_and_it_is_over_when_it_moves() -> None:
    waiting = [stall(who, NOW + 1, "communication", 121) for who in (A, B, D)]
    frozen = stall(C, NOW, "forward", 120, state="T")
    moves = [event("resumed", who, NOW + 2, step=12, epoch=1) for who in (A, B, C, D)]
    chain = Chain().feed(*healthy(), cut(NOW, frozen), cut(NOW + 1, *waiting))
    assert verdicts(chain.reported[:1]) == verdicts(chain.latest) == [("worker stopped", [C.name], Severity.SEV3, True)]
    chain.feed(cut(NOW + 2, *moves))
    assert verdicts(chain.latest) == [("worker stopped", [C.name], Severity.SEV3, False)]


@pytest.mark.parametrize("late", [False, True])
def test_a_stop_on_one_node_before_a_kill_on_another_are_two_incidents_each_with_its_culprit(late: bool) -> None:
    """The job restarts for the kill before the stop is half a second old."""
    over = event("stall", A, NOW + 0.8, step=12, state="T", age_s=0.4, epoch=1, activity="stopped", ended=1)
    told = [cut(NOW + 0.6, killed(C, NOW + 0.6)), cut(NOW + 0.7, raised(B, NOW + 0.62), raised(D, NOW + 0.62))]
    restart = [cut(NOW + 0.9, over), cut(NOW + 0.95, begun(NOW + 0.95))]
    chain = Chain().feed(*healthy(), *told, *(reversed(restart) if late else restart))
    assert sorted(verdicts(chain.latest)) == [
        ("worker killed", [C.name], Severity.SEV2, False),
        ("worker stopped", [A.name], Severity.SEV3, False),
    ]


def test_twin_a_worker_that_was_stopped_before_it_was_killed_is_one_incident() -> None:
    over = event("stall", C, NOW + 0.8, step=12, state="T", age_s=0.4, epoch=1, activity="stopped", ended=1)
    chain = Chain().feed(*healthy(), cut(NOW + 0.6, killed(C, NOW + 0.6)), cut(NOW + 0.9, over))
    assert verdicts(chain.latest) == [("worker killed", [C.name], Severity.SEV2, True)]


def test_a_hang_with_the_others_waiting_in_communication_names_the_one_behind() -> None:
    hang = [stall(A, NOW, "communication", 121), stall(B, NOW, "backward", 120)]
    rest = [stall(C, NOW + 0.2, "communication", 121), stall(D, NOW + 0.2, "communication", 121)]
    chain = Chain().feed(*healthy(), cut(NOW, *hang), cut(NOW + 0.25, *rest))
    assert verdicts(chain.reported) == [("python hang", [B.name], Severity.SEV2, True)]
    chain.feed(cut(NOW + 2, begun(NOW + 2)))
    assert verdicts(chain.latest) == [("python hang", [B.name], Severity.SEV2, False)]


def test_timeouts_of_those_who_waited_belong_to_the_hang() -> None:
    frames = list(job_frames(2, 2, 20, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=5)]))
    late = [raised(who, BEGAN + 15, "Timed out waiting 8000ms for recv operation to complete") for who in (A, C, D)]
    chain = Chain().feed(*frames[:15], cut(BEGAN + 15.1, *late))
    assert verdicts(chain.latest) == [("python hang", [B.name], Severity.SEV2, True)]


def test_a_stall_that_nobody_can_explain_accuses_nobody() -> None:
    chain = Chain().feed(*healthy(), cut(NOW, *(stall(who, NOW, "communication", 121, age_s=31.0) for who in (A, B, C, D))))
    assert verdicts(chain.latest) == [("job stalled", [], Severity.SEV2, True)]
    assert len(chain.latest[0].rivals) == 2


def test_a_pause_informs_accuses_nobody_and_is_part_of_the_hang_that_it_turns_out_to_be() -> None:
    works = [msgspec.structs.replace(each, attributes={**each.attributes, "activity": "working"}) for each in (stall(B, NOW, "forward", 120),)]
    rest = [stall(who, NOW, "communication", 121) for who in (A, C, D)]
    chain = Chain().feed(*healthy(), cut(NOW, *works, *rest))
    assert verdicts(chain.latest) == [("pause", [], Severity.INFO, True)]
    chain.feed(cut(NOW + 3, stall(B, NOW + 3, "forward", 120)))
    assert verdicts(chain.latest) == [("python hang", [B.name], Severity.SEV2, True)]
    assert len({each.id for each in chain.reported}) == 1


# --- a node ------------------------------------------------------------------------------------------------------


def node_killed(name: str, *early: Event, count: int = 12) -> list[Frame]:
    """Batches stop, both sessions break, the coordinator or a member sees it, survivors cry, a new epoch begins."""
    hit = BEGAN + 5.05
    gone = [event("session.lost", node(name), hit, role=role) for role in ("agent", "launcher")]
    seen = event("peer.lost", node(name), hit, seen_by="the other")
    alive = [who for who in (A, B, C, D) if f"/{name}/" not in who.name]
    frames = list(job_frames(2, 2, count, np.random.default_rng(0), faults=[SilentNode(name, 5)]))
    at = 5
    frames.insert(at, cut(hit + 0.01, *early, *gone, seen))
    frames.insert(at + 1, cut(hit + 0.05, *(raised(who, hit + 0.03) for who in alive)))
    frames.insert(at + 3, cut(BEGAN + 6.4, begun(BEGAN + 6.4)))
    return frames


@pytest.mark.parametrize("name", ["node-0", "node-1"])
def test_what_the_survivors_say_before_a_node_is_found_lost_is_part_of_its_incident(name: str) -> None:
    """Their job has healed itself by then."""
    chain = Chain().feed(*node_killed(name))
    assert verdicts(chain.latest) == [("node lost", [name], Severity.SEV1, True)]
    assert [each.cause for each in chain.reported][:1] == ["network error"]
    later = chain.feed(*healthy_later(chain))
    assert verdicts(later.latest) == [("node lost", [name], Severity.SEV1, True)], "nor does it fall back when the symptoms are over"


def healthy_later(chain: Chain) -> list[Frame]:
    return [Frame(job=JOB, number=200 + second, generation=1, time=BEGAN + 12.0 + second, tick=True, layout=LAYOUT) for second in range(10)]


def test_twin_connections_that_broke_and_a_worker_that_dies_later_are_two_incidents() -> None:
    chain = Chain().feed(*healthy(), cut(NOW + 0.1, raised(A, NOW), raised(C, NOW)), cut(NOW + 1, begun(NOW + 1)))
    chain.feed(cut(NOW + 4, killed(D, NOW + 4, epoch=2), event("exception", A, NOW + 4.05, type="RuntimeError", message=RESET, epoch=2, step=20)))
    assert verdicts(chain.latest) == [("network error", [], Severity.SEV3, True), ("worker killed", [D.name], Severity.SEV2, True)]
    chain.feed(cut(NOW + 5, begun(NOW + 5, epoch=3)), *(cut_frame(NOW + 6 + second, layout=LAYOUT) for second in range(12)))
    assert [each.active for each in chain.latest] == [False, False]


@pytest.mark.parametrize("name", ["node-0", "node-1"])
def test_a_killed_node_is_named_within_three_seconds_the_coordinators_or_the_other(name: str) -> None:
    chain = Chain().feed(*node_killed(name))
    assert verdicts(chain.accusing) == [("node lost", [name], Severity.SEV1, True)]
    assert next(each.time for each in chain.reported if each.culprits) - (BEGAN + 5.05) <= 3.0


def test_deaths_of_all_workers_of_a_node_turn_out_to_be_its_loss_in_the_same_incident() -> None:
    deaths = (killed(C, BEGAN + 5.04), killed(D, BEGAN + 5.04))
    frames = [frame for frame in node_killed("node-1", *deaths) if not any(e.name == "epoch.started" for e in frame.events)]
    chain = Chain().feed(*frames)
    assert verdicts(chain.latest) == [("node lost", ["node-1"], Severity.SEV1, True)]
    assert len({each.id for each in chain.reported}) == 1
    assert [each.revision for each in chain.reported] == list(range(1, len(chain.reported) + 1))


def test_while_a_node_is_away_another_fault_is_another_incident() -> None:
    chain = Chain().feed(*node_killed("node-1", count=40))
    chain.feed(cut(BEGAN + 41, killed(A, BEGAN + 41, epoch=2)))
    assert verdicts(chain.accusing) == [
        ("node lost", ["node-1"], Severity.SEV1, True),
        ("worker killed", [A.name], Severity.SEV2, True),
    ]


def test_a_slow_node_is_named_and_not_its_workers() -> None:
    faults = [SlowWorker(2, 2.8, 15), SlowWorker(3, 2.8, 15)]
    frames = job_frames(2, 2, 30, np.random.default_rng(0), faults=faults, step_s=0.25)
    chain = Chain().feed(*frames)
    assert verdicts(chain.accusing) == [("slow node", ["node-1"], Severity.SEV2, True)]
    chain.feed(cut(BEGAN + 31, begun(BEGAN + 31)))
    assert not any(incident.active for incident in chain.latest)


def test_one_slow_worker_of_a_node_is_named_alone() -> None:
    frames = job_frames(2, 2, 30, np.random.default_rng(0), faults=[SlowWorker(2, 2.0, 15)], step_s=0.25)
    assert verdicts(Chain().feed(*frames).accusing) == [("slow worker", [C.name], Severity.SEV2, True)]


# --- the loss ----------------------------------------------------------------------------------------------------


def test_a_nan_that_spreads_names_where_it_began_and_keeps_the_step() -> None:
    def spoiled(draft: Draft) -> None:
        for step in draft.steps:
            if step.number >= 21:
                step.values["grad_norm"][:] = np.nan
                who = [2] if step.number == 21 else slice(None)
                step.values["loss"][who] = np.nan
                step.values["loss_nan"] = np.isnan(step.values["loss"]).astype(np.float32)

    chain = Chain().feed(*job_frames(2, 2, 16, np.random.default_rng(0), faults=[spoiled]))
    assert verdicts(chain.latest) == [("loss not finite", [C.name], Severity.SEV2, True)]
    assert [line.value for line in chain.latest[0].evidence if line.metric == "step"] == [21.0]


# --- innocent ------------------------------------------------------------------------------------------------------


def test_a_healthy_job_has_no_incident() -> None:
    assert Chain().feed(*healthy(120)).reported == []


def test_a_stream_that_was_away_and_its_flood_accuse_nobody() -> None:
    before, after = healthy(40)[:10], healthy(40)[30:]
    many = [frame.steps for frame in healthy(40)[10:30]]
    flood = replace(after[0], steps=tuple(step for steps in many for step in steps) + after[0].steps)
    assert Chain().feed(*before, flood, *after[1:]).reported == []


def test_a_restarted_server_accuses_nobody() -> None:
    """A fresh panel in the middle of the job; sessions open again, none is lost."""
    frames = healthy(30)
    opened = [
        event("session.opened", node(name), frames[20].time, role=role)
        for name in ("node-0", "node-1")
        for role in ("agent", "launcher")
    ]
    frames[20] = with_events(frames[20], *opened)
    assert Chain().feed(*frames[15:]).reported == []


def test_what_only_informs_names_no_culprit() -> None:
    failing = event("collector.failing", node("node-0"), NOW, collector="gpu", reason="driver hangs")
    chain = Chain().feed(*healthy(), cut(NOW, failing))
    assert verdicts(chain.latest) == [("telemetry failing", [], Severity.INFO, True)]


def test_a_finding_that_no_table_knows_is_unknown_and_evicts_nobody() -> None:
    strange = finding("their.detector", A)
    (incident,) = Diagnosis().diagnose((), [strange], TOPOLOGY)
    assert verdicts([incident]) == [("unknown", [], Severity.INFO, True)]


# --- the fold itself -----------------------------------------------------------------------------------------------


def finding(kind: str, entity: Entity, since: float = NOW, **changes: object) -> Finding:
    line = Evidence(text=f"{kind} of {entity.name}", status=str(changes.pop("status", "")))
    given = {
        "id": f"{kind}/{entity.name}", "revision": 1, "detector": "d", "digest": "x", "job": JOB, "entity": entity,
        "kind": kind, "score": 1.0, "since": since, "time": since + 0.1, "evidence": (line,), "active": True,
    }  # fmt: skip
    return Finding(**{**given, **changes})  # type: ignore[arg-type]


def test_the_same_findings_give_the_same_incidents_and_a_new_leader_goes_on() -> None:
    frames = [*healthy(), cut(NOW, killed(B, NOW)), cut(NOW + 0.1, raised(A, NOW + 0.05))]
    one, other = Chain().feed(*frames), Chain().feed(*frames)
    assert msgspec.json.encode(one.reported) == msgspec.json.encode(other.reported)
    kept = msgspec.json.decode(msgspec.json.encode(one.reported[-1]), type=Incident)
    (over,) = Diagnosis().diagnose((kept,), closed(one.reported[-1]), TOPOLOGY)
    assert (over.id, over.revision, over.active) == (kept.id, kept.revision + 1, False)


def closed(incident: Incident) -> list[Finding]:
    return [msgspec.structs.replace(part, revision=part.revision + 1, active=False) for part in incident.parts]


def test_nothing_new_is_no_revision() -> None:
    (incident,) = Diagnosis().diagnose((), [finding("worker.exited", A, status="killed")], TOPOLOGY)
    again = finding("worker.exited", A, status="killed", revision=2, time=NOW + 9)
    assert list(Diagnosis().diagnose((incident,), [again], TOPOLOGY)) == []


def test_the_bill_is_the_time_of_all_workers_since_it_began() -> None:
    found = finding("worker.exited", A, status="killed", time=NOW + 90)
    (incident,) = Diagnosis().diagnose((), [found], TOPOLOGY)
    assert incident.bill_gpu_hours == pytest.approx(90 * 4 / 3600)


def test_an_incident_whose_fault_another_explains_becomes_a_part_of_it() -> None:
    crash = finding("worker.exception", C, NOW, status="other software error")
    spoil = finding("worker.exited", D, NOW + 0.6, status="killed")
    chain = Chain()
    for found in ([crash, spoil], [finding("node.lost", node("node-1"), NOW - 0.2)]):
        chain.take(Diagnosis().diagnose(tuple(chain.opened.values()), found, TOPOLOGY))
    assert len(chain.latest) == 2
    assert verdicts(chain.accusing) == [("node lost", ["node-1"], Severity.SEV1, True)]
    assert verdicts(list(chain.opened.values())) == verdicts(chain.accusing)


def test_a_thousand_victims_are_one_incident_with_few_lines() -> None:
    victims = [
        finding("worker.exception", worker(f"node-{index}", 0), NOW + 0.1, status="connection refused or reset")
        for index in range(1000)
    ]
    (incident,) = Diagnosis().diagnose((), [finding("worker.exited", A, status="killed"), *victims], TOPOLOGY)
    assert [culprit.entity for culprit in incident.culprits] == [A]
    assert len(incident.findings) == 1001
    assert len(incident.parts) <= 256
    assert len(incident.evidence) < 20
    assert "992 × worker.exception" in incident.evidence[-1].text


def test_a_storm_of_a_minute_stays_one_incident_of_bounded_size_and_hides_no_other_death() -> None:
    chain = Chain()
    chain.take(Diagnosis().diagnose((), [finding("worker.exited", A, status="killed")], TOPOLOGY))
    for second in range(10):
        victims = [
            finding("worker.exception", worker(f"node-{second}-{index}", 0), NOW + second + 0.1, status="connection refused or reset")
            for index in range(1000)
        ]
        other = [finding("worker.exited", worker("node-9", 1), NOW + second, status="killed")] if second == 5 else []
        chain.take(Diagnosis().diagnose(tuple(chain.opened.values()), [*victims, *other], TOPOLOGY))
    storm, death = chain.opened.values()
    assert [culprit.entity for culprit in storm.culprits] == [A]
    assert [culprit.entity for culprit in death.culprits] == [worker("node-9", 1)]
    assert len(storm.findings) <= 1024
    assert len(storm.parts) <= 256
    assert sum(storm.more.values()) + len(storm.parts) == 10_001
    assert "9992 × worker.exception" in storm.evidence[-1].text
    assert storm.revision <= 10


def test_ten_thousand_findings_that_nobody_knows_are_one_piece_of_news() -> None:
    strange = [finding("fan.rattles", node(f"node-{index}"), NOW + index / 1000) for index in range(1000)]
    (incident,) = Diagnosis().diagnose((), strange, TOPOLOGY)
    assert (incident.cause, incident.culprits, incident.severity) == ("unknown", (), Severity.INFO)
    assert len(incident.evidence) <= 80


def test_the_documentation_names_every_cause_and_every_finding() -> None:
    text = (Path(__file__).parents[3] / "docs" / "findings.md").read_text()
    assert [cause.word for cause in CAUSES if cause.word not in text] == []
    assert [cause.kind for cause in CAUSES if cause.kind != "*" and f"`{cause.kind}`" not in text] == []
