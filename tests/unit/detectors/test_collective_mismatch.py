"""Workers that stand in collectives which they called differently: told, the program blamed, no node."""

from typing import Any

import pytest

from detectors.collective_mismatch import CollectiveMismatch
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Event, Severity
from fakes.diagnosis_chain import LAYOUT, Chain
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker
from fakes.synthetic_frames import BEGAN
from remediation.policy.escalation import Attempt, escalation_of, next_level

NOW = BEGAN + 6.0
USUAL = "7 broadcast -1 16 Float; 8 all_reduce 8 8 Float"
SIZE, TYPE, OPERATION = "8 all_reduce 9 9 Float", "8 all_reduce 8 8 BFloat16", "8 reduce 8 -1 Float"
ORDER = "7 all_reduce 8 8 Float; 8 broadcast -1 16 Float"


def stall(rank: int, calls: str = USUAL, time: float = NOW, **more: Any) -> Event:
    place = LAYOUT.placements[rank]
    told = {"collective": "all_reduce", "collective_group": "0 default_pg nccl", "collective_number": 8, "collective_pending": 1, "collective_calls": calls, "age_s": 2.0, "state": "S", "epoch": 1}
    return event("stall", worker(place.node, place.local_rank), time, **{**told, **more})


def cut(*events: Event, time: float = NOW) -> Frame:
    return cut_frame(time, *events, layout=LAYOUT)


def claims(*told: Event) -> list[Claim]:
    return claims_of(CollectiveMismatch(), [cut(*told)])


@pytest.mark.parametrize(("calls", "what"), [(SIZE, "another size in collective 8"), (TYPE, "another type in collective 8"), (OPERATION, "another operation in collective 8"), (ORDER, "another order of collectives from 7")])
def test_fault_the_one_of_four_that_called_otherwise(calls: str, what: str) -> None:
    [claim] = claims(stall(0), stall(1), stall(2, calls), stall(3))
    assert (claim.kind, claim.entity.name) == ("collective.mismatch", LAYOUT.workers[2])
    assert claim.evidence[0].text.startswith(f"{what} of group 0 default_pg nccl: ")
    assert [line.text.partition(": ")[0] for line in claim.evidence[1:]] == [", ".join(LAYOUT.workers[rank] for rank in (0, 1, 3)), LAYOUT.workers[2]]


def test_twin_two_against_two_name_nobody_and_are_told_of_the_job() -> None:
    [claim] = claims(stall(0), stall(1), stall(2, SIZE), stall(3, SIZE))
    assert claim.entity == job()
    assert [line.text.rpartition(": ")[2] for line in claim.evidence[1:]] == ["all_reduce of 8 Float", "all_reduce of 9 Float"]


@pytest.mark.parametrize(("size", "named"), [("3", True), ("", False), ("4", False)])
def test_twin_more_than_half_of_the_group_names_and_where_its_size_is_not_told_more_than_half_of_the_job(size: str, named: bool) -> None:
    """Three of a tensor group tell, and the other worker of the job stands in another group: two of four is no majority."""
    told = [stall(rank, SIZE if rank == 1 else USUAL, collective_group="1 tp nccl", collective_size=size) for rank in range(3)]
    found = claims(*told, stall(3, collective_group="2 dp nccl"))
    assert [claim.entity.name for claim in found] == [LAYOUT.workers[1] if named else job().name]


@pytest.mark.parametrize("more", [{"collective_pending": 0}, {"collective": "", "collective_group": "", "collective_calls": "", "collective_pending": ""}])
def test_twin_while_one_is_in_no_collective_the_others_may_wait_for_that_one(more: dict[str, Any]) -> None:
    assert claims(stall(0), stall(1), stall(2, SIZE), stall(3, **more)) == []
    assert claims(stall(0), stall(1), stall(2, SIZE)) == []


@pytest.mark.parametrize("calls", ["8 all_to_all -1 -1", USUAL, "9 all_reduce 9 9 Float", ""])
def test_twin_calls_that_agree_or_that_are_of_another_number(calls: str) -> None:
    assert claims(stall(0, calls if "all_to_all" in calls else USUAL), stall(1, calls), stall(2, calls if "all_to_all" in calls else USUAL), stall(3, calls)) == []


def test_over_when_one_moves_and_when_the_epoch_ends_and_what_an_old_epoch_says_is_not_heard() -> None:
    told = cut(stall(0), stall(1), stall(2, SIZE), stall(3))
    moves = event("resumed", worker(LAYOUT.placements[0].node, LAYOUT.placements[0].local_rank), NOW + 1, epoch=1)
    begun = event("epoch.started", job(), NOW + 1, epoch=2, reason="command")
    assert [claim.active for claim in claims_of(CollectiveMismatch(), [told, cut(moves, time=NOW + 1)])] == [True, False]
    assert [claim.active for claim in claims_of(CollectiveMismatch(), [told, cut(begun, time=NOW + 1), told])] == [True, False]


def test_a_recorder_that_does_not_answer_for_once_changes_nothing() -> None:
    silent = stall(2, "", NOW + 1, collective="", collective_group="", collective_pending="", collective_number="")
    assert len(claims_of(CollectiveMismatch(), [cut(stall(0), stall(1), stall(2, SIZE), stall(3)), cut(silent, time=NOW + 1)])) == 1


@pytest.mark.parametrize(("calls", "waits_s"), [(SIZE, 5.0), (ORDER, 30.0)])
def test_it_informs_until_all_have_stood_for_long_then_the_job_is_restarted_once_and_no_node_is_ever_evicted(calls: str, waits_s: float) -> None:
    """Where they wait in another collective than the one that they called differently, that one may have ended: it takes longer."""
    chain = Chain().feed(cut(stall(0), stall(1), stall(2, calls), stall(3)))
    assert [(each.cause, each.severity, each.culprits) for each in chain.opened.values()] == [("collective mismatch", Severity.INFO, ())]
    chain.feed(cut(stall(2, calls, NOW + waits_s - 0.1, activity="working"), time=NOW + waits_s - 0.1))
    assert [each.severity for each in chain.opened.values()] == [Severity.INFO]
    chain.feed(cut(stall(2, calls, NOW + waits_s, activity="standing"), time=NOW + waits_s))
    [incident] = chain.opened.values()
    assert (incident.cause, incident.severity, [culprit.entity.name for culprit in incident.culprits]) == ("collective mismatch", Severity.SEV2, [LAYOUT.workers[2]])
    levels = escalation_of(incident.cause, incident.severity).levels
    tried = Attempt(plan="1", incident="1", job="j", cause=incident.cause, culprits=frozenset(), action="restart_worker", ended=0.0, failed=True)
    assert (next_level(levels, [], {}), next_level(levels, [tried], {})) == ("restart_worker", None)
