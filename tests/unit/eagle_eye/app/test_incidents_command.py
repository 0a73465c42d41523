"""`eagle-eye incidents` as a person types it."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import Result

from eagle_eye.changes import ObservedChange
from eagle_eye.ledger import Ledger
from eagle_eye.types import (
    Culprit,
    Entity,
    Evidence,
    Incident,
    IncidentState,
    Kind,
    Notice,
    Outcome,
    Plan,
    Progress,
    Severity,
    Target,
)

Cli = Callable[..., Result]
JOB = "team/gpt/7"


@pytest.fixture
def ledger(tmp_path: Path, empty_ledger: Path) -> Iterator[Ledger]:
    """The ledger of the state directory `state`."""
    (tmp_path / "state").mkdir()
    path = tmp_path / "state" / "ledger.sqlite"
    path.write_bytes(empty_ledger.read_bytes())
    opened = Ledger.open(path)
    yield opened
    opened.close()


def incident(name: str, *, state: IncidentState = IncidentState.OPEN) -> tuple[Incident, IncidentState]:
    culprit = Culprit(entity=Entity(kind=Kind.WORKER, name="7/node-a/1"), confidence=0.9)
    return Incident(
        id=name, revision=1, job=JOB, cause="worker killed", culprits=(culprit,), severity=Severity.SEV2, findings=("f1",),
        evidence=(Evidence(text="ended by SIGKILL"),), since=100.0, time=100.5,
    ), state  # fmt: skip


def test_without_a_server_there_is_no_ledger_and_that_is_said(cli: Cli) -> None:
    result = cli("incidents", "--state-dir", "nowhere")
    assert result.exit_code == 1
    assert "nowhere/ledger.sqlite" in result.output
    assert "--state-dir" in result.output
    assert not Path("nowhere").exists(), "a look leaves nothing behind"


def test_an_empty_ledger_has_no_incidents(cli: Cli, ledger: Ledger) -> None:
    assert cli("incidents", "--state-dir", "state").output == "no incident so far\n"
    assert cli("incidents", "--open", "--state-dir", "state").output == "no incident is open\n"
    assert cli("incidents", "--json", "--state-dir", "state").output == ""


def test_incidents_are_listed_and_filtered(cli: Cli, ledger: Ledger) -> None:
    ledger.save_incident(*incident("4f1c9a02"))
    ledger.save_incident(*incident("77aa0000"))
    ledger.move_incident("77aa0000", IncidentState.CLOSED, 101.0)
    lines = cli("incidents", "--json", "--state-dir", "state").output.splitlines()
    assert {json.loads(line)["id"] for line in lines} == {"4f1c9a02", "77aa0000"}
    (line,) = cli("incidents", "--json", "--open", "--state-dir", "state").output.splitlines()
    assert json.loads(line)["id"] == "4f1c9a02"
    assert cli("incidents", "--json", "--job", "team/other/1", "--state-dir", "state").output == ""


def test_one_incident_is_found_by_the_beginning_of_its_id(cli: Cli, ledger: Ledger) -> None:
    ledger.save_incident(*incident("4f1c9a02"))
    shown = cli("incidents", "4f1c", "--state-dir", "state").output
    for words in ("worker killed", "7/node-a/1 (90%)", "ended by SIGKILL", JOB, "found 0.50 s later"):
        assert words in shown
    assert json.loads(cli("incidents", "4f1c", "--json", "--state-dir", "state").output.splitlines()[0])["cause"] == "worker killed"
    assert "no stacks were dumped" in cli("incidents", "4f1c", "--stacks", "--state-dir", "state").output
    assert "name its id" in cli("incidents", "--stacks", "--state-dir", "state").output


def test_an_incident_shows_what_it_costs_in_money_and_what_the_accused_did_before(cli: Cli, ledger: Ledger) -> None:
    kept, state = incident("4f1c9a02")
    earlier = msgspec.structs.replace(kept, id="1a", cause="gpu memory error", since=kept.since - 86_400.0, time=kept.time - 86_400.0)
    ledger.save_incident(earlier, state)
    ledger.save_incident(msgspec.structs.replace(kept, bill_gpu_hours=400.0), state)
    Path("priced.toml").write_text('state_dir = "state"\n[cost]\ngpu_hour = 2.5\ncurrency = "EUR"\n')
    shown = cli("incidents", "4f1c", "--config", "priced.toml").output
    assert "cost so far 400.0000 GPU-hours (1,000.00 EUR)" in shown
    assert "2nd incident in 30 days, the last one 1d before; so far 1 gpu memory error" in shown
    assert "EUR" not in cli("incidents", "4f1c", "--state-dir", "state").output


def test_an_incident_shows_what_changed_before(cli: Cli, ledger: Ledger) -> None:
    ledger.save_incident(*incident("4f1c9a02"))
    assert "changed before" not in cli("incidents", "4f1c", "--state-dir", "state").output
    node = Entity(kind=Kind.NODE, name="node-a")
    ledger.save_changes([ObservedChange(entity=node, job=JOB, what="nvidia driver", before="535.1", after="", known=30.0, seen=40.0)])
    shown = cli("incidents", "4f1c", "--state-dir", "state").output
    assert "changed before\n  node-a: nvidia driver 535.1 → none, 1m before\n" in shown


STACK = 'Process {0}: python t.py\nThread {0} (idle): "MainThread"\n    {1}\n    main (/t.py:88)\n'


def test_the_stacks_of_an_incident_are_shown_in_groups_and_with_wide_as_they_were_taken(cli: Cli, ledger: Ledger) -> None:
    ledger.save_incident(*incident("4f1c9a02"))
    plan = Plan(id="p1", incident="4f1c9a02", action="dump", targets=(Target(job=JOB, epoch=1, basis=""),), made=101.0, expires=200.0, severity=Severity.SEV2)
    waiting = [f"7/node-a/{slot}" for slot in range(7)]
    told = [
        {"workers": ["7/node-a/7"], "stack": STACK.format(17, "load (/data.py:12)")}, {"workers": ["7/node-b/0"], "stack": "(py-spy: not allowed)\nstate: D"},
        {"workers": waiting, "stack": STACK.format(10, "all_reduce (/x/torch/distributed/distributed_c10d.py:3000)")},
    ]  # fmt: skip
    intended = Progress(step="dump", state="intended", time=102.0)
    ledger.record_intent(plan, intended)
    ledger.record_result(plan, msgspec.structs.replace(intended, state="done", detail=msgspec.json.encode({"stacks": told}).decode()))
    shown = cli("incidents", "4f1c", "--stacks", "--state-dir", "state").output
    assert "Workers 7/node-a/[0-6] wait for their peers; worker 7/node-a/7 does not." in shown
    assert "as group 1 down to t.py:88 main, then" in shown
    assert "7/node-b/0\n(py-spy: not allowed)\nstate: D" in shown, "as it is"
    assert "Process 17: python t.py" not in shown
    assert "Process 17: python t.py" in cli("incidents", "4f1c", "--stacks", "--wide", "--state-dir", "state").output


def found_at(ledger: Ledger, cli: Cli, opened: float, *notices: Notice) -> str:
    """What is shown of an incident whose fault began at 100 and that was opened then."""
    shown, state = incident("4f1c9a02")
    ledger.save_incident(shown, state, time=opened)
    ledger.save_outcome(Outcome(plan="p1", action="restart_job", incident="4f1c9a02", state="done", time=opened + 9.0, actual={"downtime_s": 8.0, "throughput_per_s": 5.0}))
    for notice in notices:
        ledger.save_notice(notice)
    return cli("incidents", "4f1c", "--state-dir", "state").output


def test_no_incident_is_found_before_its_fault_began(cli: Cli, ledger: Ledger) -> None:
    shown = found_at(ledger, cli, 90.23)
    assert "found after an unknown time (the clock jumped)" in shown
    assert "-9.77" not in shown.partition("timeline")[0]


def test_clocks_that_differ_by_less_than_anybody_notices_are_no_jump(cli: Cli, ledger: Ledger) -> None:
    assert "found 0.00 s later" in found_at(ledger, cli, 99.9)


def test_a_duration_across_a_jump_of_the_servers_clock_is_not_told(cli: Cli, ledger: Ledger) -> None:
    shown = found_at(ledger, cli, 4100.5, Notice(name="clock.jumped", time=4100.0, message="set forward by 4000.0 s"))
    assert "found after an unknown time (the clock jumped)" in shown
    assert "downtime" in shown, "it was measured after the jump"
    ledger.save_notice(Notice(name="clock.jumped", time=4105.0, message="set back by 400.0 s"))
    again = cli("incidents", "4f1c", "--state-dir", "state").output
    assert "downtime" not in again
    assert "throughput" in again


def test_a_jump_that_the_server_made_up_for_hides_nothing(cli: Cli, ledger: Ledger) -> None:
    shown = found_at(ledger, cli, 100.5, Notice(name="clock.slewed", time=100.2, message="set forward by 30.0 s"))
    assert "found 0.50 s later" in shown
    assert "downtime" in shown


def test_what_a_heal_cost_is_shown_though_nobody_foretold_it(cli: Cli, ledger: Ledger) -> None:
    ledger.save_incident(*incident("4f1c9a02"))
    usual = {"incident": "4f1c9a02", "state": "done", "time": 101.0}
    ledger.save_outcome(Outcome(plan="p1", action="heal_in_place", actual={"downtime_s": 0.08}, **usual))
    ledger.save_outcome(Outcome(plan="p2", action="resize", predicted={"loss": 2.5, "loss_high": 3.0}, actual={"loss": 2.0, "verify_s": 5.0}, **usual))
    lines = [re.split(" {2,}", line) for line in cli("incidents", "4f1c", "--state-dir", "state").output.splitlines()]
    for words in (["downtime", "0.08 s"], ["loss", "2.5", "2"], ["loss, upper bound", "3", "2"], ["verified after", "5.00 s"]):
        assert words in lines


def test_the_json_of_a_step_is_shown_as_text_and_in_full_with_wide(cli: Cli, ledger: Ledger) -> None:
    ledger.save_incident(*incident("4f1c9a02"))
    order = {"workers": ["7/node-a/0", "7/node-a/1"], "exclude": ["node-a"], "resume_step": -1, "skip": []}
    plan = Plan(
        id="p1", incident="4f1c9a02", action="evict_node", targets=(Target(job=JOB, epoch=1, basis="", exclude=("node-a",)),),
        made=101.0, expires=200.0, severity=Severity.SEV1,
    )  # fmt: skip
    ledger.record_intent(plan, Progress(step=f"restart {JOB}", state="intended", time=101.0, detail=json.dumps(order)))
    shown = cli("incidents", "4f1c", "--state-dir", "state").output
    assert f"restart {JOB} intended: workers node-a/0, node-a/1; exclude node-a" in " ".join(shown.split())
    assert "{" not in shown
    assert json.dumps(order) in cli("incidents", "4f1c", "--wide", "--state-dir", "state").output


@pytest.mark.parametrize(("name", "said"), [("9", "no incidents begin with '9'"), ("4f", "2 incidents begin with '4f'")])
def test_an_unknown_or_ambiguous_incident_is_named_with_the_remedy(cli: Cli, ledger: Ledger, name: str, said: str) -> None:
    ledger.save_incident(*incident("4f1c9a02"))
    ledger.save_incident(*incident("4f1c9a03"))
    result = cli("incidents", name, "--state-dir", "state")
    assert result.exit_code == 1
    assert said in result.output
    assert "`eagle-eye incidents` lists them" in result.output
