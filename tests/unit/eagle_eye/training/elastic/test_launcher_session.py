"""An elastic worker's session: what it answers to a fence, and when its waits end."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.errors import Ended, Fenced, FencedOut, Halted, LauncherLost, WireError
from eagle_eye.training.elastic.epoch_protocol import EpochAssignment, HeldState, read_assignment
from eagle_eye.training.elastic.launcher_session import LauncherSession
from eagle_eye.training.elastic.local_session import LocalSession
from eagle_eye.training.elastic.process_group.process_group import SingleProcessGroup, form
from fakes.launcher_sessions import FakeLauncher, even_plan

PATIENCE_S = 30.0


@pytest.fixture
def launcher() -> Iterator[FakeLauncher]:
    with tempfile.TemporaryDirectory(prefix="elastic") as folder, FakeLauncher(f"{folder}/s") as made:
        yield made


@pytest.fixture
def connect(launcher: FakeLauncher) -> Iterator[Callable[..., LauncherSession]]:
    sessions: list[LauncherSession] = []

    def connected(worker: str = "a", held_state: HeldState | None = None) -> LauncherSession:
        session = LauncherSession.connect(launcher.path, worker, os.getpid())
        sessions.append(session)
        session.held_state = lambda: held_state or HeldState(step=7, done=(1, 2), phase="computing", fresh=False)
        session.join(epoch=0, step=7, micro_batches=4, segments=1, layers=[10, 20], fresh=False)
        launcher.wait_for_joins(worker)
        return session

    yield connected
    for session in sessions:
        session.close()


class Background:
    """A call in another thread, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self._result = error

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it waits for ever"
        return self._result


class Watched:
    """A group that tells whether it was aborted."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.aborts = 0
        self.closed = 0

    def abort(self) -> None:
        self.aborts += 1

    def close(self) -> None:
        self.closed += 1


def test_a_fence_is_answered_while_the_main_thread_hangs(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()  # this thread is the main one, and never comes back to the session
    group = Watched(1)
    session.use_group(group)
    launcher.fence(2, "a")
    held = launcher.wait_for("held_state", "a", epoch=2)
    assert (held["step"], held["done"], held["phase"], held["fresh"]) == (7, [1, 2], "computing", False)
    assert group.aborts == 1
    assert session.fenced_epoch == 2
    with pytest.raises(Fenced) as raised:
        session.check(1)
    assert raised.value.epoch == 2
    session.check(2)


def test_a_group_of_the_new_epoch_is_not_aborted_by_its_own_fence(launcher: FakeLauncher, connect: Any) -> None:
    session, group = connect(), Watched(2)
    session.use_group(group)
    launcher.fence(2, "a")
    launcher.wait_for("held_state", "a", epoch=2)
    assert group.aborts == 0


def test_a_group_that_comes_too_late_is_aborted_when_it_is_used(launcher: FakeLauncher, connect: Any) -> None:
    session, late = connect(), Watched(1)
    launcher.fence(2, "a")
    launcher.wait_for("held_state", "a", epoch=2)
    session.use_group(late)
    assert late.aborts == 1


def test_the_group_before_is_closed_when_another_is_used(connect: Any) -> None:
    session, first, second = connect(), Watched(1), Watched(2)
    session.use_group(first)
    session.use_group(second)
    assert (first.closed, second.closed) == (1, 0)


def test_after_a_fence_no_commit_of_an_older_epoch_starts(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    launcher.fence(2, "a")
    launcher.wait_for("held_state", "a", epoch=2)
    assert not session.may_commit(1)
    assert session.may_commit(2)


def test_a_commit_that_was_started_is_reported_until_the_step_is_over(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    assert session.may_commit(1)
    launcher.fence(2, "a")
    assert launcher.wait_for("held_state", "a", epoch=2)["phase"] == "committing"
    session.held_state = lambda: HeldState(step=8, phase="computing", fresh=False)
    launcher.fence(3, "a")
    assert launcher.wait_for("held_state", "a", epoch=3)["phase"] == "computing"


def test_a_commit_that_broke_is_forgotten_with_its_group(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    assert session.may_commit(1)
    session.use_group(Watched(2))
    launcher.fence(3, "a")
    assert launcher.wait_for("held_state", "a", epoch=3)["phase"] == "computing"


def test_the_held_state_is_read_under_the_lock(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    with session.lock:
        launcher.fence(2, "a")
        held = [HeldState(step=7, phase="reducing", fresh=False)]
        session.held_state = lambda: held[0]
        held[0] = HeldState(step=8, phase="idle", fresh=False)
    assert launcher.wait_for("held_state", "a", epoch=2)["step"] == 8


def test_a_soft_fence_waits_for_the_boundary_and_aborts_nothing(launcher: FakeLauncher, connect: Any) -> None:
    session, group = connect(), Watched(1)
    session.use_group(group)
    launcher.fence(2, "a", soft=True)
    session.ask_store(1, PATIENCE_S, op="count", keys=["1/"], values=[])  # the fence was heard by now
    assert session.soft_epoch == 2
    assert session.fenced_epoch == -1
    assert launcher.received("held_state") == []
    assert session.may_commit(1)
    session.answer_soft_fence(HeldState(step=8, phase="idle", fresh=False))
    assert launcher.wait_for("held_state", "a", epoch=2)["step"] == 8
    assert group.aborts == 0
    session.answer_soft_fence(HeldState(step=9, phase="idle", fresh=False))
    session.ask_store(2, PATIENCE_S, op="count", keys=["1/"], values=[])
    assert len(launcher.received("held_state")) == 1


def test_who_waits_for_a_regroup_is_at_a_boundary(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    waiting = Background(lambda: session.next_assignment(0))
    orders = launcher.form(1, "a", soft=True)
    assert waiting.result() == orders["a"]


def test_a_soft_fence_waits_for_the_boundary_of_the_epoch_that_the_worker_is_called_into(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    launcher.fence(2, "a")
    launcher.wait_for("held_state", "a", epoch=2)
    launcher.fence(3, "a", soft=True)
    waiting = Background(lambda: session.next_assignment(0))
    orders = even_plan(2, {"a": launcher.wait_for("held_state", "a", epoch=2)}, {"a": launcher.wait_for("join", "a")})
    launcher.assign(orders)
    assert waiting.result() == orders["a"]
    session.ask_store(2, PATIENCE_S, op="count", keys=["2/"], values=[])
    assert launcher.received("held_state", epoch=3) == []


def test_a_soft_fence_that_follows_on_an_assignment_is_for_the_step_after(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    waiting = Background(lambda: session.next_assignment(0))
    launcher.fence(1, "a", soft=True)
    orders = even_plan(1, {"a": launcher.wait_for("held_state", "a", epoch=1)}, {"a": launcher.wait_for("join", "a")})
    with session.lock:  # so the worker's thread does not see the one before the other
        launcher.assign(orders)
        launcher.fence(2, "a", soft=True)
    assert waiting.result() == orders["a"], "the others wait for it in this epoch"
    session.ask_store(1, PATIENCE_S, op="count", keys=["1/"], values=[])
    assert launcher.received("held_state", epoch=2) == []
    session.answer_soft_fence(HeldState(step=8, phase="idle", fresh=False))
    assert launcher.wait_for("held_state", "a", epoch=2)["step"] == 8


def test_a_soft_fence_that_comes_again_is_answered_again(launcher: FakeLauncher, connect: Any) -> None:
    """A launcher whose session to the coordinator broke is asked once more: the first answer never arrived there."""
    session = connect()
    launcher.fence(1, "a", soft=True)
    waiting = Background(lambda: session.next_assignment(0))
    first = launcher.wait_for("held_state", "a", epoch=1)
    session.held_state = lambda: HeldState(step=7, phase="idle", fresh=False)
    launcher.fence(1, "a", soft=True)
    launcher.wait_for("held_state", "a", epoch=1, phase="idle")
    orders = even_plan(1, {"a": first}, {"a": launcher.wait_for("join", "a")})
    launcher.assign(orders)
    assert waiting.result() == orders["a"]
    launcher.fence(1, "a", soft=True)
    session.ask_store(1, PATIENCE_S, op="count", keys=["1/"], values=[])
    assert len(launcher.received("held_state", epoch=1)) == 2, "the epoch has begun: what it holds is another step"


def test_the_assignment_of_a_job_of_a_thousand_workers_is_read(launcher: FakeLauncher, connect: Any) -> None:
    """At the start of such a job one worker's state goes to all others; each of them is told of every move."""
    session = connect()
    moves = tuple((0, taker, layer) for taker in range(1, 1024) for layer in range(100))
    orders = replace(launcher.form(1, "a")["a"], epoch=2, moves=moves)
    launcher.assign({"a": orders})
    assert session.next_assignment(1) == orders


def test_a_regroup_that_a_newer_fence_overtook_is_not_given_out(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    launcher.form(1, "a")
    launcher.fence(3, "a")
    launcher.wait_for("held_state", "a", epoch=3)
    waiting = Background(lambda: session.next_assignment(0))
    launcher.form(3, "a")
    assert waiting.result().epoch == 3


@pytest.mark.parametrize(
    ("kind", "words", "raised"),
    [
        ("halt", {"reason": "too few workers", "code": 5}, Halted),
        ("fenced", {"reason": "declared stalled"}, FencedOut),
        ("ended", {"reason": "all steps are done"}, Ended),
    ],
)
def test_what_ends_the_work_ends_every_wait(
    launcher: FakeLauncher, connect: Any, kind: str, words: Any, raised: Any
) -> None:
    session, group = connect(), Watched(1)
    session.use_group(group)
    waits = [
        Background(lambda: session.next_assignment(0)),
        Background(lambda: session.ask_store(1, PATIENCE_S, op="get", keys=["1/never"], values=[])),
        Background(lambda: session.wait_until(1, lambda: False)),
    ]
    launcher.send("a", kind, **words)
    assert [type(wait.result()) for wait in waits] == [raised] * 3
    assert str(waits[0].result()) == words["reason"]
    assert getattr(waits[0].result(), "code", None) == words.get("code")
    assert group.aborts == 1
    assert not session.may_commit(1)
    with pytest.raises(raised):
        session.check(1)


def test_a_worker_that_was_fenced_out_may_join_again(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    launcher.send("a", "fenced", reason="stalled")
    assert isinstance(Background(lambda: session.next_assignment(0)).result(), FencedOut)
    session.join(epoch=1, step=0, micro_batches=4, segments=1, layers=[], fresh=True)
    launcher.wait_for("join", "a", fresh=True)
    launcher.form(2, "a")
    assert session.next_assignment(1).epoch == 2


def test_every_wait_ends_with_the_launcher(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    waits = [
        Background(lambda: session.next_assignment(0)),
        Background(lambda: session.ask_store(1, PATIENCE_S, op="get", keys=["1/never"], values=[])),
    ]
    launcher.close()
    for wait in waits:
        assert isinstance(wait.result(), LauncherLost)
        assert "launcher" in str(wait.result())
    session.check(1)  # an established group goes on
    session.send("resumed", epoch=1, step=1)


def test_a_launcher_that_is_not_there_is_named() -> None:
    with pytest.raises(LauncherLost, match=r"no-such-socket.*EAGLE_EYE_ELASTIC_SOCKET"):
        LauncherSession.connect("/no-such-socket", "a", 1)


def test_a_wait_that_is_too_long_raises(connect: Any) -> None:
    with pytest.raises(TimeoutError):
        connect().wait_until(1, lambda: False, timeout_s=0.01)


def test_a_held_state_that_cannot_be_read_ends_the_waits(launcher: FakeLauncher, connect: Any) -> None:
    session = connect()
    session.held_state = lambda: 1 / 0  # type: ignore[assignment,return-value]
    waiting = Background(lambda: session.next_assignment(0))
    launcher.fence(2, "a")
    assert "ZeroDivisionError" in str(waiting.result())


def test_what_is_no_assignment_is_refused() -> None:
    with pytest.raises(WireError, match="not an assignment"):
        read_assignment({"kind": "assignment", "epoch": 1})


def test_alone_is_an_epoch_of_one() -> None:
    session = LocalSession()
    session.join(epoch=0, step=3, micro_batches=2, segments=1, layers=[8], fresh=True)
    regroup = session.next_assignment(0)
    assert (regroup.world, regroup.step, regroup.current, regroup.source) == (1, 3, ((0, 1),), "checkpoint")
    group = form(session, regroup)
    assert isinstance(group, SingleProcessGroup)
    session.use_group(group)
    assert session.may_commit(regroup.epoch)
    with pytest.raises(Ended):
        session.next_assignment(regroup.epoch)


def plan(*held: dict[str, Any]) -> list[EpochAssignment]:
    held_states = {f"w{rank}": {"step": 5, "done": [], "fresh": False, **each} for rank, each in enumerate(held)}
    join_requests = {worker: {"micro_batches": 6, "layers": [1, 1]} for worker in held_states}
    return list(even_plan(9, held_states, join_requests).values())


def test_the_rehearsed_plan_loses_no_micro_batch_and_no_state() -> None:
    orders = plan({"done": [0, 1]}, {"done": [2, 3]}, {"step": 4, "done": [4]}, {"step": 0, "fresh": True})
    assert [order.rank for order in orders] == [0, 1, 2, 3]
    assert sorted(sum(orders[0].current, ())) == list(range(6))
    assert set(orders[0].current[0]) >= {0, 1}
    assert set(orders[0].current[1]) >= {2, 3}
    assert orders[0].moves == ((0, 2, 0), (0, 2, 1), (0, 3, 0), (0, 3, 1))
    assert {order.step for order in orders} == {5}
    assert plan({"fresh": True, "step": 0})[0].source == "checkpoint"


def test_importing_the_session_loads_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, eagle_eye.training.elastic.launcher_session, eagle_eye.training.elastic.process_group.process_group, eagle_eye.training.elastic.rendezvous.key_value_store; print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[5]
    )
    assert found.stdout.strip() == "False"
