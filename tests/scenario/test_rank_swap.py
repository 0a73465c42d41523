"""A deadlock that comes back after a restart: two nodes exchange their ranks, and what the deadlock follows is to blame."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.rpc.control_client import call
from eagle_eye.types import Plan
from servers.pager import SECRET, Pager

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 150.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
lease_s = 1.5
http = ""

[engine]
mode = "auto"
downtime_s = 2.0

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
    """A job of two nodes with two workers each, at work."""
    monkeypatch.setenv("EAGLE_EYE_WEBHOOK_SECRET", SECRET)
    with tempfile.TemporaryDirectory(prefix="swap") as folder:
        config = f'{CONFIG}"{pager.url}"\n'
        made = DemoJob(
            folder=Path(folder), config=config, command=(sys.executable, str(LOOP)), job="test/loop", launch=("--preload", "none"), clock=SystemClock()
        )
        try:
            made.start()
            wait(made, "a healthy job", made.full)
            assert made.wait_steps(60, DEADLINE_S)
            yield made
        finally:
            made.stop()


def wait(demo_job: DemoJob, what: str, condition: Callable[[], object]) -> None:
    seen = [(each.incident.cause, each.incident.culprits, each.state) for each in demo_job.record.kept]
    assert demo_job.wait(lambda: bool(condition()), DEADLINE_S), f"waited {DEADLINE_S:g} s for: {what}\n{seen}\n{demo_job.cluster.tail('server')}"


def plans(demo_job: DemoJob, action: str) -> list[Plan]:
    """Oldest first."""
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        found = [plan for each in demo_job.record.kept for plan in ledger.plans(incident=each.incident.id) if plan.action == action]
    return sorted(found, key=lambda plan: plan.made)


def ranks(demo_job: DemoJob) -> list[str]:
    """Nodes of the ranks."""
    layout = demo_job.record.trace.layout
    return [place.node for place in layout.placements] if layout is not None else []


def catch(demo_job: DemoJob, who: str) -> None:
    """From now on a deadlock catches that rank, or the last worker of that node."""
    next(demo_job.folder.rglob("done")).with_name(f"deadlock-{who}").touch()


def test_a_deadlock_that_follows_its_rank_is_the_programs_and_evicts_nobody(demo_job: DemoJob, pager: Pager) -> None:
    catch(demo_job, "3")
    wait(demo_job, "the ranks to be exchanged", lambda: ranks(demo_job) == ["node-b", "node-b", "node-a", "node-a"])
    said = "the fault followed the ranks when node-a and node-b exchanged them: it is the program's or its data's"
    wait(demo_job, "a notification that says whose fault it is", lambda: any(said in notification["news"] for notification in pager.bodies))
    assert plans(demo_job, "evict_node") == []
    assert call(demo_job.server_address, "status")["cordoned"] == []


def test_a_deadlock_that_stays_on_its_node_evicts_the_node_and_says_why(demo_job: DemoJob) -> None:
    catch(demo_job, "node-b")
    wait(demo_job, "the ranks to be exchanged", lambda: ranks(demo_job) == ["node-b", "node-b", "node-a", "node-a"])
    wait(demo_job, "the node to be left out", lambda: set(ranks(demo_job)) == {"node-a"} and demo_job.wait_steps(60, DEADLINE_S))
    [eviction] = plans(demo_job, "evict_node")
    assert eviction.targets[0].exclude == ("node-b",)
    assert eviction.reason.endswith("stayed on its node when node-a and node-b exchanged their ranks: it is the node's")
    restarts = plans(demo_job, "restart_worker")
    assert [plan.targets[0].swap for plan in restarts] == [(), ("node-a", "node-b")]
