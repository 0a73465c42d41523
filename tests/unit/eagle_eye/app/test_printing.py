"""Tables of commands: no wider than the terminal, and no word, id or date broken over lines."""

import re

import pytest
from click.testing import CliRunner
from rich.console import Console

from eagle_eye.app.cli import main
from eagle_eye.app.demo.fault_verdict import FaultVerdict
from eagle_eye.app.demo.live_view import print_verdicts
from eagle_eye.app.demo.scenario import FAULTS
from eagle_eye.app.drills import GroundTruth
from eagle_eye.app.printing import TableColumn, brief_id, brief_time, local_time, shortened, table_lines
from eagle_eye.ledger import Ledger
from eagle_eye.types import (
    Breaker,
    Culprit,
    Entity,
    Evidence,
    Incident,
    IncidentState,
    Kind,
    Plan,
    Progress,
    Severity,
    Silence,
    Target,
    Window,
)

WIDTH = 80
NOW = 1_763_800_000.0
JOB = "team-language/gpt-large-3/20251120-083000"
ID = "f3b65b21c541faba"
PROSE = "worker 20251120-083000/node-a/0 computes 4.19 times as long as its fast peers, in 80% of the last 10 steps"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in a terminal of WIDTH columns; more with `columns`."""
    monkeypatch.chdir(tmp_path)

    def command(*words, columns=WIDTH, home=tmp_path):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = CliRunner().invoke(main, [*words, "--state-dir", str(home), "--run-dir", str(tmp_path / "run")])
        assert result.exit_code == 0, result.output
        return result.output

    return command


def fits(output):
    lines = output.splitlines()
    assert max(map(len, lines)) <= WIDTH, output
    return lines


def incident(**changes):
    values = {
        "id": ID, "revision": 1, "job": JOB, "cause": "illegal memory access", "severity": Severity.SEV2, "time": NOW + 1, "since": NOW,
        "culprits": (Culprit(entity=Entity(kind=Kind.WORKER, name="20251120-083000/rack-7-node-104/3"), confidence=0.9),),
        "evidence": (Evidence(text=PROSE),), "findings": (),
    } | changes  # fmt: skip
    return Incident(**values)


@pytest.fixture
def ledger(ledger_path):
    with_incident = Ledger.open(ledger_path)
    with_incident.save_incident(incident(), IncidentState.OPEN)
    yield with_incident
    with_incident.close()


# --- the table itself -------------------------------------------------------------------------------------------------


def test_a_narrow_terminal_loses_the_least_important_columns_first():
    columns = (TableColumn("id"), TableColumn("job", drop=1), TableColumn("note", drop=2), TableColumn("state"))
    row = (ID, "a" * 30, "b" * 30, "healed")
    assert [str(line) for line in table_lines(columns, [row], 60)] == ["id                job                             state", f"{ID}  {'a' * 30}  healed"]
    assert [str(line) for line in table_lines(columns, [row], 30)][1] == f"{ID}  healed"
    assert str(table_lines(columns, [row], None)[1]).split() == list(row)


def test_ids_and_dates_are_never_broken_even_where_the_terminal_is_too_narrow():
    columns = (TableColumn("id"), TableColumn("opened"))
    assert str(table_lines(columns, [(ID, "2026-11-22 17:10:36")], 20)[1]) == f"{ID}  2026-11-22 17:10:36"


def test_brief_forms_come_before_a_column_is_dropped():
    columns = (TableColumn("id", brief=brief_id), TableColumn("opened", brief=brief_time), TableColumn("job", drop=1))
    row = (ID, "2026-11-22 17:10:36", "team/gpt/1")
    assert str(table_lines(columns, [row], 40)[1]) == "f3b65b21  11-22 17:10:36  team/gpt/1"
    assert str(table_lines(columns, [row], 60)[1]).split("  ") == list(row)


def test_prose_wraps_between_words_and_long_names_lose_their_middle():
    columns = (TableColumn("node", name=True), TableColumn("why", prose=True))
    lines = [str(line) for line in table_lines(columns, [("rack-7-row-12-node-0104.cluster.example", PROSE)], 60)]
    assert max(map(len, lines)) <= 60
    assert [word for line in lines[1:] for word in line.split("  ")[-1].split()] == PROSE.split()
    assert lines[1].startswith("rack-7-")
    assert "…" in lines[1]


def test_a_key_to_be_typed_stays_whole_where_another_column_can_spare_the_room():
    columns = (TableColumn("collector"), TableColumn("found", prose=True), TableColumn("remedy", prose=True))
    row = ("nccl_inspector", "no folder is named, and none was looked for", "name one: [collectors.nccl_inspector] folders = [...]")
    lines = [str(line) for line in table_lines(columns, [row], 70)]
    assert max(map(len, lines)) <= 70
    assert any("[collectors.nccl_inspector]" in line for line in lines)
    full = (row[0], "found /opt/cluster/environments/production/bin/py-spy", row[2])
    assert "…" in "".join(str(line) for line in table_lines(columns, [full], 70)), "there is no room to spare"


def test_a_short_name_stays_whole():
    assert shortened("node-a", 16) == "node-a"
    assert len(shortened("x" * 40, 16)) == 16


# --- each command -----------------------------------------------------------------------------------------------------


def test_the_list_of_incidents_fits(run, ledger):
    header, row = fits(run("incidents"))
    assert header.split() == ["id", "opened", "cause", "culprit", "state"]
    assert row.split()[0] == ID[:8]
    assert brief_time(local_time(NOW + 1)) in row
    assert "illegal memory access" in row


@pytest.mark.parametrize("words", [("--wide",), ()])
def test_a_wide_list_of_incidents_has_everything(run, ledger, words):
    _, row = run("incidents", *words, columns=WIDTH if words else 200).splitlines()
    for text in (ID, local_time(NOW + 1), JOB, "SEV2", "worker 20251120-083000/rack-7-node-104/3 (90%)"):
        assert text in row


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b1A\r\x08all is well \u202eden\u2066 \x1b[31m"
STEERING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")


@pytest.mark.parametrize("words", [("incidents",), ("incidents", "--wide"), ("incidents", ID)])
def test_nothing_that_a_training_says_steers_the_terminal_of_an_operator(run, ledger, words):
    hostile = Culprit(entity=Entity(kind=Kind.WORKER, name=f"r/n/{HOSTILE}"), confidence=0.9)
    evil = incident(revision=2, cause=f"lost {HOSTILE}", job=f"t/n/{HOSTILE}", culprits=(hostile,), evidence=(Evidence(text=f"raised {HOSTILE}, 损失 è 1\u202f000"),))
    ledger.save_incident(evil, IncidentState.OPEN)
    shown = run(*words, columns=400)
    assert "all is well" in shown
    assert not STEERING.search(shown)
    if ID in words:
        assert "损失 è 1" in shown, "twin: letters of any language stay"


def test_a_step_of_any_content_is_listed(run, ledger):
    """A plugin's action may say what it likes of a step; `stacks` that are a number ended the command."""
    aim = Target(job=JOB, epoch=1, basis="b")
    plan = Plan(id="p1", incident=ID, action="own", targets=(aim,), made=NOW, expires=NOW + 60, severity=Severity.SEV2, own=False, reason="r")
    ledger.save_plan(plan)
    for number, detail in enumerate(('{"stacks": 5}', '{"stacks": null, "workers": 3}', '{"workers": ["a"], "stacks": ["x"]}')):
        ledger.record_intent(plan, Progress(step=f"s{number}", state="intended", time=NOW + number))
        ledger.record_result(plan, Progress(step=f"s{number}", state="done", time=NOW + number, detail=detail))
    shown = run("incidents", ID, columns=300)
    assert "1 different stacks" in shown, "twin: those of a dump are counted"


def test_an_incident_fits(run, ledger):
    output = "\n".join(fits(run("incidents", ID[:6])))
    assert ID in output
    assert JOB in output
    assert local_time(NOW) in output


def test_the_doctor_fits(run):
    lines = fits(run("doctor"))
    assert lines[0].split() == ["check", "found", "remedy"]


@pytest.fixture
def status(monkeypatch):
    """What the server answers to `status`."""
    held = {
        "silences": [Silence(id=ID, job=JOB, node="", cause="slow *", since=NOW, until=NOW + 3600, person="ada.lovelace", reason=PROSE)],
        "windows": [Window(id=ID, nodes=("rack-7-*", "rack-8-*"), jobs=(JOB,), since=NOW, until=NOW + 3600, person="ada.lovelace", reason=PROSE)],
        "breakers": [Breaker(id=ID, job=JOB, action="restart_worker", since=NOW, incident=ID, plan="p", reason=PROSE)],
    }
    monkeypatch.setattr("eagle_eye.app.suppression_printing.ask", lambda *_: {name: [vars_of(each) for each in rows] for name, rows in held.items()})


def vars_of(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


@pytest.mark.parametrize("command", ["silence", "maintenance", "breaker"])
def test_silences_windows_and_breakers_fit(run, status, command):
    lines = fits(run(command, "list"))
    assert lines[1].startswith(ID[:8])
    assert ID in run(command, "list", "--wide")


def test_tokens_fit(run):
    run("token", "add", "somebody.with.a.very.long.name", "--role", "operator", "--tenant", "team-language-of-the-north", "--expires", "3d")
    lines = fits(run("token", "list"))
    assert "expires soon" in lines[1]
    assert re.search(r"\d\d-\d\d \d\d:\d\d", lines[1])


def test_alerts_that_wait_fit(run, ledger, tmp_path):
    assert fits(run("alerts", "waiting")) == ["every notification was delivered"]


def test_certificates_fit(run):
    run("certs", "init")
    run("certs", "issue", "head", "--kind", "server", "--host", "head-node-of-the-cluster.example.org", "--host", "10.0.0.1")
    lines = fits(run("certs", "show"))
    assert "days left" in " ".join(lines)


def test_the_demos_table_fits(monkeypatch, capsys):
    rows = [
        FaultVerdict(
            fault=fault, truth=GroundTruth(kind=fault.kind, time=NOW), found_s=1.2, culprit="worker run-1/node-b/0", culprit_right=True, cause="illegal memory access", cause_right=right,
            actions=("restart_worker (did not help)", "restart_worker"), training_s=8.3, steps_lost=7, steps_after=20, throughput=1.0, loss_off=0.0, wrongs=() if right else ("cause wrong",),
        )
        for fault, right in zip(FAULTS, [True, False] * 5, strict=True)
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    print_verdicts(Console(), rows)
    lines = fits(capsys.readouterr().out)
    assert "no: cause wrong" in " ".join(lines)
    print_verdicts(Console(), rows, wide=True)
    assert "steps lost" in capsys.readouterr().out.splitlines()[0]
