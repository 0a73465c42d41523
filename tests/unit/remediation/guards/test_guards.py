"""Each guard against the plan that it must stop and its nearest innocent twin."""

import msgspec
import pytest

from eagle_eye.types import Allow, Approval, Hold, Mode, Plan, Refuse, Topology
from fakes.sample_plan import JOB, NOW, done, layout, plan, situation
from remediation.guards.approval import PersonalApproval
from remediation.guards.blast_radius import BlastRadius
from remediation.guards.duplicates import Duplicates
from remediation.policy.affected_nodes import touched

# --- duplicates ------------------------------------------------------------------------------------------------------


def test_the_same_again_is_refused():
    verdict = Duplicates()(plan("p2"), situation(running=(plan("p1"),)))
    assert isinstance(verdict, Refuse)
    assert "p1" in verdict.reason


def test_another_plan_for_the_same_job_is_held_until_the_first_has_ended():
    running = (plan("p1", action="roll_back"),)
    assert isinstance(Duplicates()(plan("p2"), situation(running=running)), Hold)
    assert isinstance(Duplicates()(plan("p2"), situation()), Allow)


def test_a_plan_for_another_job_and_the_plan_itself_do_not_stand_in_the_way():
    assert isinstance(Duplicates()(plan("p2"), situation(running=(plan("p1", job="t/n/other"),))), Allow)
    assert isinstance(Duplicates()(plan("p1"), situation(running=(plan("p1"),))), Allow)


# --- blast radius ----------------------------------------------------------------------------------------------------


def test_one_node_more_than_allowed_is_refused():
    guard = BlastRadius(nodes=2)
    before = done(plan("p1", exclude=("a",)), plan("p2", exclude=("b",)))
    verdict = guard(plan("p3", exclude=("c",)), situation(**before))
    assert isinstance(verdict, Refuse)
    assert "3 nodes" in verdict.reason
    assert isinstance(guard(plan("p3", exclude=("b",)), situation(**before)), Allow)


def test_what_the_job_did_to_itself_counts_as_well():
    own = done(
        plan("p1", workers=("r/a/0",), action="restart_worker", own=True),
        plan("p2", workers=("r/b/1",), action="restart_worker", own=True),
    )
    assert isinstance(BlastRadius(nodes=2)(plan("p3", exclude=("c",)), situation(**own)), Refuse)


@pytest.mark.parametrize("innocent", [
    {"before": done(plan("p1", exclude=("a",)), plan("p2", exclude=("b",)), ago=3700)},
    {"before": done(plan("p1", exclude=("a",), job="t/n/other"), plan("p2", exclude=("b",), job="t/n/other"))},
    {"before": done(plan("p1", exclude=("a",), action="dump"), plan("p2", exclude=("b",), action="notify"))},
])  # fmt: skip
def test_long_ago_other_jobs_and_looking_on_do_not_count(innocent):
    assert isinstance(BlastRadius(nodes=2)(plan("p3", exclude=("c",)), situation(**innocent["before"])), Allow)


def test_a_large_cluster_may_lose_its_share():
    before = done(plan("p1", exclude=("a",)), plan("p2", exclude=("b",)))
    guard = BlastRadius(nodes=2, share=0.1)
    assert isinstance(guard(plan("p3", exclude=("c",)), situation(nodes=29, layouts={}, **before)), Refuse)
    assert isinstance(guard(plan("p3", exclude=("c",)), situation(nodes=30, layouts={}, **before)), Allow)


def test_a_job_may_lose_its_own_share_however_large_the_cluster_is():
    before = done(plan("p1", exclude=("n1",)), plan("p2", exclude=("n2",)))
    large = {JOB: layout(nodes=tuple(f"n{number}" for number in range(30)))}
    assert isinstance(BlastRadius()(plan("p3", exclude=("n3",)), situation(nodes=10_000, **before)), Refuse)
    assert isinstance(BlastRadius()(plan("p3", exclude=("n3",)), situation(nodes=10_000, layouts=large, **before)), Allow)


def other_jobs(*nodes: str) -> dict[str, object]:
    return done(*(plan(f"p{name}", job=f"t/n/{name}", exclude=(name,)) for name in nodes))


def test_nodes_of_several_jobs_at_one_switch_accuse_the_switch():
    at_one = Topology(nodes={**dict.fromkeys("abcd", "leaf-1"), "x": "leaf-2"})
    verdict = BlastRadius()(plan("p", exclude=("c",)), situation(topology=at_one, **other_jobs("a", "b")))
    assert isinstance(verdict, Refuse)
    assert "3 nodes at switch leaf-1 within 1 h (a, b, c); allowed: 2" in verdict.reason
    assert isinstance(BlastRadius()(plan("p", exclude=("c",)), situation(topology=at_one, **other_jobs("a", "x"))), Allow)
    unknown = Topology(nodes=dict.fromkeys("abcd", ""))
    assert isinstance(BlastRadius()(plan("p", exclude=("c",)), situation(topology=unknown, **other_jobs("a", "b"))), Allow)


def test_the_cluster_as_a_whole_loses_only_so_much():
    guard, before = BlastRadius(), other_jobs("n1", "n2", "n3", "n4")
    verdict = guard(plan("p", exclude=("c",)), situation(nodes=200, **before))
    assert isinstance(verdict, Refuse)
    assert "5 nodes of the cluster" in verdict.reason
    assert isinstance(guard(plan("p", exclude=("c",)), situation(nodes=250, **before)), Allow)
    restarted = done(*(plan(f"p{number}", job=f"t/n/{number}", workers=(f"r/n{number}/0",), action="restart_worker") for number in range(9)))
    assert isinstance(guard(plan("p", exclude=("c",)), situation(**restarted)), Allow), "restarts leave nobody out"


def test_what_was_planned_and_never_done_does_not_count():
    before = done(plan("p1", exclude=("a",)), plan("p2", exclude=("b",)), state="stale")
    assert isinstance(BlastRadius()(plan("p3", exclude=("c",)), situation(**before)), Allow)


def test_a_plan_that_touches_no_node_is_never_too_many():
    before = done(*(plan(f"p{n}", exclude=(f"n{n}",)) for n in range(9)))
    assert isinstance(BlastRadius(nodes=2)(plan("p", action="roll_back"), situation(**before)), Allow)


def test_nodes_of_workers_are_read_from_their_names():
    assert list(touched(plan(workers=("run/node-a/0", "odd")), "t/n/r")) == ["node-a"]


# --- approval --------------------------------------------------------------------------------------------------------


def word(of: Plan, *, approved=True, time=NOW - 1, expires=NOW + 60) -> Approval:
    return Approval(digest=of.digest, person="Ada", approved=approved, time=time, expires=expires)


def test_auto_asks_nobody_but_for_what_always_needs_a_person():
    assert isinstance(PersonalApproval()(plan(), situation()), Allow)
    guard = PersonalApproval(approve_always=("evict_node",))
    assert isinstance(guard(plan(), situation()), Hold)
    assert isinstance(guard(plan(action="roll_back"), situation()), Allow)
    assert isinstance(guard(plan(), situation(approvals=(word(plan()),))), Allow)


def test_a_word_on_one_incident_says_nothing_about_the_next() -> None:
    before = msgspec.structs.replace(word(plan(), approved=False), incident="another incident")
    assert isinstance(PersonalApproval()(plan(), situation(mode=Mode.RECOMMEND, approvals=(before,))), Hold)


def test_recommend_waits_for_a_word_on_this_very_plan():
    guard, mode = PersonalApproval(), Mode.RECOMMEND
    other = msgspec.structs.replace(plan(), id="p9")
    assert isinstance(guard(plan(), situation(mode=mode)), Hold)
    assert isinstance(guard(plan(), situation(mode=mode, approvals=(word(other),))), Allow)  # same action and targets
    changed = plan(exclude=("b",))
    assert isinstance(guard(changed, situation(mode=mode, approvals=(word(plan()),))), Hold)


def test_a_word_expires_and_the_newest_counts():
    guard, mode = PersonalApproval(), Mode.RECOMMEND
    assert isinstance(guard(plan(), situation(mode=mode, approvals=(word(plan(), expires=NOW),))), Hold)
    words = (word(plan(), time=NOW - 9), word(plan(), time=NOW - 5, approved=False))
    verdict = guard(plan(), situation(mode=mode, approvals=words))
    assert isinstance(verdict, Refuse)
    assert "Ada" in verdict.reason


def test_observe_only_writes_down():
    assert isinstance(PersonalApproval()(plan(), situation(mode=Mode.OBSERVE, approvals=(word(plan()),))), Refuse)
