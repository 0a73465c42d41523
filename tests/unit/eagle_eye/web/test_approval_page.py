"""/approve/{token}: what a person sees on a phone, and what does not get a plan approved."""

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from eagle_eye.access import Authorization, Role, Tokens
from eagle_eye.access.tokens import add_person
from eagle_eye.errors import LedgerError
from eagle_eye.rpc.control_messages import Decision, PendingPlansQuery
from eagle_eye.types import Entity, Kind, Mode, Severity
from eagle_eye.web.approval_page import LeaderAccess, route
from fakes.web_request import Asking
from remediation.operators.approval_requests import ApprovalLinks

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
URL = "https://eagle.example"


@dataclass
class Scene:
    """A plan waits, its link was sent, and people have tokens."""

    world: object
    folder: object
    leads: bool = True
    tokens: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world, clock = self.world, self.world.clock
        died = world.job.die(WORKER.name)
        world.find("ecc error", WORKER, severity=Severity.SEV1, event=died)
        world.run(3)
        path = self.folder / "tokens" / "tokens.toml"
        self.people = {
            "viewer": (Role.VIEWER, None, ""), "operator": (Role.OPERATOR, None, ""), "stranger": (Role.OPERATOR, None, "another-team"),
            "old": (Role.OPERATOR, clock.now() + 1, ""),
        }  # fmt: skip
        for name, (role, expires, tenant) in self.people.items():
            self.tokens[name] = add_person(path, name, role, now=clock.now(), expires=expires, tenant=tenant)
        clock.advance(2)
        self.approval_links = ApprovalLinks(world.ledger, clock, f"{URL}/")
        authorization = Authorization(Tokens(path, clock), trust_claims=True)
        opened = route(lambda: LeaderAccess(engine=world.engine, ledger=world.ledger) if self.leads else None, authorization, clock)
        self.app = Asking(Starlette(routes=[Route(opened.path, opened.answer, methods=list(opened.methods))]))

    @property
    def plan(self):
        [shown] = self.world.engine.pending_plans(PendingPlansQuery())["plans"]
        return self.world.ledger.plan(shown["plan"]["id"])

    def link(self) -> str:
        return self.approval_links.link(self.plan).removeprefix(URL)

    def get(self, link) -> httpx.Response:
        return self.app.get(link)

    def post(self, link, who="", *, decision="approve", digest="", token="", headers=None, **fields) -> httpx.Response:
        data = {"decision": decision, "digest": digest or _digest_in(self.get(link).text), "token": token or self.tokens.get(who, ""), **fields}
        return self.app.post(link, data=data, headers=headers or {})

    @property
    def words(self) -> list:
        return [(word.person, word.approved) for word in self.world.ledger.approvals()]


def _digest_in(text: str) -> str:
    found = re.search(r'name="digest" value="(\w+)"', text)
    return found[1] if found else ""


@pytest.fixture
def scene(make_world, tmp_path) -> Scene:
    return Scene(world=make_world(Mode.RECOMMEND), folder=tmp_path)


def test_looking_shows_the_plan_and_decides_nothing_however_often(scene):
    link = scene.link()
    for _ in range(3):
        seen = scene.get(link)
        assert seen.status_code == 200
        for words in (scene.plan.id, scene.plan.digest, "evict_node", "nodes node-b", "ecc error"):
            assert words in seen.text
    assert "script" not in seen.text
    assert seen.headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in seen.headers["content-security-policy"]
    assert seen.headers["referrer-policy"] == "same-origin"
    assert scene.words == []
    scene.world.run(5)
    assert scene.world.sent == []


def test_an_operator_approves_once_and_the_job_heals(scene):
    link = scene.link()
    answer = scene.post(link, "operator")
    assert (answer.status_code, scene.words) == (200, [("operator", True)])
    assert "is approved by operator" in answer.text
    scene.world.run(5)
    assert scene.world.sent == ["restart"]


def test_a_refusal_counts_as_well_and_the_token_may_stand_in_a_header(scene):
    answer = scene.post(scene.link(), decision="refuse", headers={"Authorization": f"Bearer {scene.tokens['operator']}"})
    assert (answer.status_code, scene.words) == (200, [("operator", False)])
    scene.world.run(5)
    assert scene.world.sent == []


NOBODY = [
    ({}, 401, "the request has no token"),
    ({"token": "eet_guessed"}, 401, "not known here"),
    ({"who": "old"}, 401, "the token of old expired"),
    ({"who": "viewer"}, 403, "needs the role operator"),
    ({"who": "stranger"}, 403, "jobs of another-team alone"),
    ({"who": "operator", "headers": {"Sec-Fetch-Site": "cross-site"}}, 403, "another site"),
    ({"who": "operator", "headers": {"Sec-Fetch-Site": "same-site"}}, 403, "another site"),
    ({"who": "operator", "headers": {"Origin": "https://evil.example"}}, 403, "another site"),
    ({"who": "operator", "headers": {"Origin": "null"}}, 403, "another site"),
    ({"who": "operator", "headers": {"Origin": "http://[::1"}}, 403, "another site"),
    ({"who": "operator", "digest": "another"}, 409, "of another plan"),
    ({"who": "operator", "decision": "maybe"}, 400, "has no decision"),
    ({"who": "operator", "note": "x" * 10_000}, 413, "no form of this page"),
]


def test_what_decides_nothing_is_told_why_and_leaves_the_link_as_it_was(scene):
    link = scene.link()
    answers = [(scene.post(link, **given), status, words) for given, status, words in NOBODY]
    assert [answer.status_code for answer, *_ in answers] == [status for _, status, _ in answers]
    assert [words for answer, _, words in answers if words not in answer.text] == []
    assert "eet_guessed" not in "".join(answer.text for answer, *_ in answers)
    assert scene.words == []
    assert scene.post(link, "operator").status_code == 200


@pytest.mark.parametrize("table", ["approvals", "approval_links"])
def test_a_link_whose_decision_could_not_be_written_is_not_used_up(scene, table):
    """The disk of the ledger fills up between two writes: the person, who is told so, decides again under the same link."""
    link = scene.link()
    what = "INSERT ON approvals" if table == "approvals" else "UPDATE ON approval_links"
    with sqlite3.connect(scene.folder / "ledger0.sqlite") as disk:
        disk.execute(f"CREATE TRIGGER full BEFORE {what} BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    failed = scene.post(link, "operator")
    assert (failed.status_code, scene.words) == (503, [])
    assert "Nothing was decided" in failed.text
    with sqlite3.connect(scene.folder / "ledger0.sqlite") as disk:
        disk.execute("DROP TRIGGER full")
    assert scene.post(link, "operator").status_code == 200
    scene.world.run(5)
    assert (scene.words, scene.world.sent) == ([("operator", True)], ["restart"])


def test_two_clicks_at_once_are_one_decision(scene):
    link, digest = scene.link(), scene.plan.digest
    with ThreadPoolExecutor(2) as clicks:
        answers = [answer.status_code for answer in clicks.map(lambda _: scene.post(link, "operator", digest=digest), range(2))]
    assert sorted(answers) == [200, 410]
    assert scene.words == [("operator", True)]


def test_a_note_that_could_not_be_written_leaves_the_plan_undecided(scene):
    """Who is told that it failed has decided nothing."""
    plan = scene.plan
    with sqlite3.connect(scene.folder / "ledger0.sqlite") as disk:
        disk.execute("CREATE TRIGGER full BEFORE INSERT ON notes BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    with pytest.raises(LedgerError, match="disk is full"):
        scene.world.engine.decide(Decision(plan=plan.id, digest=plan.digest, person="ada", note="as agreed"), True)
    assert scene.words == []


def test_a_second_answer_is_too_late(scene):
    link = scene.link()
    digest = scene.plan.digest
    scene.post(link, "operator")
    for again in (scene.post(link, "operator", decision="refuse", digest=digest), scene.get(link)):
        assert again.status_code == 410
        assert "operator approved plan" in again.text
    assert scene.words == [("operator", True)]


def test_an_unknown_link_is_none(scene):
    for answer in (scene.get("/approve/guessed"), scene.post("/approve/guessed", "operator", digest="d"), scene.get("/approve/" + "x" * 5000)):
        assert answer.status_code == 404
        assert scene.plan.id not in answer.text


def test_a_link_expires_with_its_plan_and_the_new_plan_has_a_new_one(scene):
    link, first = scene.link(), scene.plan.id
    scene.world.clock.advance(scene.world.engine.pending_plans(PendingPlansQuery())["plans"][0]["plan"]["expires"] - scene.world.clock.now() + 1)
    scene.world.run(5)
    assert scene.plan.id != first
    seen = scene.get(link)
    assert seen.status_code == 410
    assert "expired at" in seen.text
    assert f"Now plan {scene.plan.id} waits" in seen.text
    assert scene.link() != link
    assert scene.get(scene.link()).status_code == 200


def test_a_link_of_a_plan_that_was_made_anew_decides_nothing(scene):
    """A new epoch changes the targets: what the person saw is not what would be done."""
    link, digest = scene.link(), scene.plan.digest
    scene.world.job._begin("node returned")
    scene.world.run(5)
    assert scene.plan.digest != digest
    for answer in (scene.get(link), scene.post(link, "operator", digest=digest)):
        assert answer.status_code == 410
        assert "out of date" in answer.text
        assert scene.plan.id in answer.text
    assert scene.words == []


def test_what_was_decided_on_the_command_line_is_over_here_too(scene):
    link, plan = scene.link(), scene.plan
    scene.world.engine.decide(Decision(plan=plan.id, digest=plan.digest, person="ada"), True)
    scene.world.run(5)
    assert scene.get(link).status_code == 410
    assert scene.post(link, "operator", digest=plan.digest).status_code == 410
    assert scene.words == [("ada", True)]


def test_what_a_plan_says_cannot_become_markup(scene):
    case = next(iter(scene.world.engine._state.incidents.values()))
    hostile = "<script>alert(1)</script>"
    case.incident = msgspec.structs.replace(case.incident, cause=hostile)
    text = scene.get(scene.link()).text
    assert hostile not in text
    assert "&lt;script&gt;" in text


def test_links_of_a_standby_wait_and_without_a_port_there_is_none(scene):
    link = scene.link()
    assert scene.link() == link
    scene.leads = False
    assert scene.get(link).status_code == 503
    scene.leads = True
    assert scene.get(link).status_code == 200
    assert ApprovalLinks(scene.world.ledger, scene.world.clock, "").link(scene.plan) == ""
