"""An action that does not help, on a living job: its slow-down does not depend on the node that is blamed for it."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eagle_eye.app.cli import main
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.rpc.control_client import call
from eagle_eye.types import Breaker, Outcome, Refuse
from servers.pager import SECRET, Pager

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 150.0
RELAPSE_S = 2.0
CONFIG = f"""\
[server]
listen = "127.0.0.1:{{port}}"
lease_s = 1.5
http = ""

[engine]
mode = "auto"
relapse_s = {RELAPSE_S}
verify_s = 5.0
downtime_s = 2.0
restart_success_share = 0.0
rank_swap = false

[guards.blast_radius]
nodes = 10

[actions.notify]
update_s = 0.5
url = """


@pytest.fixture
def pager(tmp_path: Path) -> Iterator[Pager]:
    made = Pager(tmp_path, "plain", free_port())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def demo_job(pager: Pager, monkeypatch: pytest.MonkeyPatch) -> Iterator[DemoJob]:
    monkeypatch.setenv("EAGLE_EYE_WEBHOOK_SECRET", SECRET)
    with tempfile.TemporaryDirectory(prefix="nohelp") as folder:  # short: paths of unix sockets are limited
        config = f'{CONFIG}"{pager.url}"\n'
        made = DemoJob(
            folder=Path(folder), config=config, command=(sys.executable, str(LOOP)), job="test/loop", launch=("--preload", "none"), clock=SystemClock()
        )
        try:
            made.start()
            yield made
        finally:
            made.stop()


def wait(demo_job: DemoJob, what: str, condition: Callable[[], object]) -> None:
    told = f"{[(each.incident.cause, each.incident.culprits, each.state) for each in demo_job.record.kept]}"
    assert demo_job.wait(lambda: bool(condition()), DEADLINE_S), f"waited {DEADLINE_S:g} s for: {what}\n{told}\n{demo_job.cluster.tail('server')}"


@contextlib.contextmanager
def ledger_of(demo_job: DemoJob) -> Iterator[Ledger]:
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        yield ledger


def outcomes(demo_job: DemoJob, action: str, state: str) -> list[Outcome]:
    with ledger_of(demo_job) as ledger:
        return [outcome for outcome in ledger.outcomes() if (outcome.action, outcome.state) == (action, state)]


def breakers(demo_job: DemoJob) -> tuple[Breaker, ...]:
    with ledger_of(demo_job) as ledger:
        return ledger.breakers(at=demo_job.clock.now())


def refused(demo_job: DemoJob) -> list[str]:
    """Reasons for which the breaker has refused later plans."""
    with ledger_of(demo_job) as ledger:
        verdicts = [kept.verdict for each in demo_job.record.kept for kept in ledger.verdicts(incident=each.incident.id)]
    return [verdict.reason for verdict in verdicts if isinstance(verdict, Refuse) and verdict.guard == "breaker"]


def nodes(demo_job: DemoJob) -> set[str]:
    layout = demo_job.record.trace.layout
    return set(layout.nodes) if layout is not None else set()


def cli(demo_job: DemoJob, *words: str) -> Result:
    where = ["--config", str(demo_job.folder / "eagle-eye.toml"), "--state-dir", str(demo_job.cluster.state_dir)]
    return CliRunner().invoke(main, [*words, *where, *(() if words[0] == "incidents" else ("--server", demo_job.server_address))])


def test_a_slow_down_that_survives_is_undone_and_not_tried_again_until_a_person_says_so(demo_job: DemoJob, pager: Pager) -> None:
    wait(demo_job, "a healthy job", demo_job.full)
    assert demo_job.wait_steps(60, DEADLINE_S)
    drag = next(demo_job.folder.rglob("done")).with_name("drag")
    drag.touch()

    wait(demo_job, "the accused node to be left out", lambda: nodes(demo_job) == {"node-a"})
    wait(demo_job, "the breaker", lambda: breakers(demo_job))
    [breaker] = breakers(demo_job)
    assert (breaker.job, breaker.action) == ("test/loop/run-1", "evict_node")
    wait(demo_job, "the innocent node to take part again", lambda: nodes(demo_job) == {"node-a", "node-b"} and outcomes(demo_job, "undo", "done"))
    assert call(demo_job.server_address, "status")["cordoned"] == []
    wait(demo_job, "a notification to a person", lambda: any(f"eagle-eye breaker close {breaker.id}" in notification["news"] for notification in pager.bodies))

    [failed] = outcomes(demo_job, "evict_node", "failed")
    assert failed.actual["throughput_per_s"] < 0.9 * failed.predicted["throughput_per_s"]
    shown = cli(demo_job, "incidents", breaker.incident).output
    assert "predicted and actual" in shown
    assert "without node-b the fault stays" in shown

    drag.unlink()
    wait(demo_job, "what follows not to be a relapse any more", lambda: demo_job.clock.now() > failed.time + 2 * RELAPSE_S)
    drag.touch()
    wait(demo_job, "a later plan to be refused", lambda: refused(demo_job))
    assert breaker.reason in refused(demo_job)[0]
    assert breaker.id in cli(demo_job, "breaker", "list", "--json").output
    assert cli(demo_job, "note", breaker.incident[:10], "it is the script", "--as", "ada").exit_code == 0
    assert "ada: it is the script" in cli(demo_job, "incidents", breaker.incident).output
    slip = cli(demo_job, "silence", "--job", "test/lop", "--for", "2h", "--reason", "benchmark")
    assert "there is no job 'test/lop'; there are: test/loop/run-1" in slip.output
    assert nodes(demo_job) == {"node-a", "node-b"}
    closed = cli(demo_job, "breaker", "close", breaker.id, "--as", "ada")
    assert closed.exit_code == 0, closed.output
    wait(demo_job, "the action to be tried again", lambda: nodes(demo_job) != {"node-a", "node-b"})
    assert [each.person for each in ledger_breakers(demo_job) if each.id == breaker.id] == ["ada"]


def ledger_breakers(demo_job: DemoJob) -> tuple[Breaker, ...]:
    with ledger_of(demo_job) as ledger:
        return ledger.breakers()
