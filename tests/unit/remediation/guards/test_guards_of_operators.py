"""Breaker, silence, maintenance: what a person has said, or must say first."""

from msgspec.structs import replace

from eagle_eye.types import Allow, Breaker, Hold, Refuse, Silence, Window
from fakes.sample_plan import JOB, NOW, incident, plan, situation
from remediation.guards.breaker import OpenBreaker
from remediation.guards.maintenance import Maintenance
from remediation.guards.silence import Silenced

OPEN = Breaker(
    id="b1", job=JOB, action="evict_node", plan="p0", incident="i0", reason="50% of the throughput", since=NOW - 60
)
QUIET = Silence(id="s1", person="ada", reason="benchmark", since=NOW - 60, until=NOW + 40, job="t/n")
WORK = Window(id="w1", person="ada", reason="new cables", since=NOW - 60, until=NOW + 40, nodes=("c",))


def test_an_open_breaker_stops_its_action_on_its_job_and_says_how_to_close_it():
    verdict = OpenBreaker()(plan(exclude=("c",)), situation(breakers=(OPEN,)))
    assert isinstance(verdict, Refuse)
    assert "50% of the throughput" in verdict.reason
    assert "eagle-eye breaker close b1" in verdict.reason


def test_a_breaker_stops_no_other_action_and_no_other_job():
    assert isinstance(OpenBreaker()(plan(action="restart_worker"), situation(breakers=(OPEN,))), Allow)
    assert isinstance(OpenBreaker()(plan(job="t/n/other", exclude=("c",)), situation(breakers=(OPEN,))), Allow)
    assert isinstance(OpenBreaker()(plan(exclude=("c",)), situation()), Allow)


def test_a_silence_holds_the_plan_until_it_is_over_and_says_whose_it_is():
    verdict = Silenced()(plan(exclude=("c",)), situation(silences=(QUIET,)))
    assert isinstance(verdict, Hold)
    assert verdict.seconds == 40
    assert "ada silenced it: benchmark" in verdict.reason
    assert "eagle-eye silence end s1" in verdict.reason


def test_a_silence_for_a_node_covers_plans_about_it_also_if_they_leave_nobody_out():
    quiet = situation(silences=(replace(QUIET, job="*", node="c"),))
    assert isinstance(Silenced()(plan(action="restart_worker"), quiet), Hold), "the culprit is on c"
    elsewhere = situation(silences=(replace(QUIET, job="*", node="d"),))
    assert isinstance(Silenced()(plan(action="restart_worker"), elsewhere), Allow)
    assert isinstance(Silenced()(plan(exclude=("d",)), elsewhere), Hold)


def test_a_silence_for_another_job_or_cause_stops_nothing():
    for other in (replace(QUIET, job="t/other"), replace(QUIET, cause="python hang")):
        assert isinstance(Silenced()(plan(exclude=("c",)), situation(silences=(other,))), Allow)
    assert isinstance(Silenced()(plan(), situation(silences=(replace(QUIET, cause="slow *"),))), Hold)


def test_nobody_is_isolated_while_somebody_works_on_the_node():
    verdict = Maintenance()(plan(exclude=("b", "c")), situation(windows=(WORK,)))
    assert isinstance(verdict, Hold)
    assert verdict.seconds == 40
    assert "ada works on c: new cables" in verdict.reason


def test_work_elsewhere_and_weaker_repairs_do_not_wait():
    assert isinstance(Maintenance()(plan(exclude=("b",)), situation(windows=(WORK,))), Allow)
    assert isinstance(Maintenance()(plan(action="restart_worker", workers=("r/c/0",)), situation(windows=(WORK,))), Allow)


def test_work_on_a_job_covers_all_of_its_nodes():
    work = replace(WORK, nodes=(), jobs=("t/n",))
    assert isinstance(Maintenance()(plan(exclude=("b",)), situation(windows=(work,))), Hold)
    assert isinstance(Maintenance()(plan(job="t/other/r", exclude=("b",)), situation(windows=(work,))), Allow)


def test_a_fault_without_a_culprit_can_be_silenced_by_its_job():
    nobody = situation(incident=incident(culprit=""), silences=(QUIET,))
    assert isinstance(Silenced()(plan(action="roll_back"), nobody), Hold)
