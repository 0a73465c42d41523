"""What a launcher makes of its workers' messages and ends."""

import asyncio
import signal
import time
from pathlib import Path

import msgspec
import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.config import StallConfig
from eagle_eye.errors import ControlError
from eagle_eye.rpc.control_messages import Body, Command
from eagle_eye.types import Layout
from fakes.launcher_member import Member, made
from fakes.memory_cgroup_files import Kernel
from remediation.launcher import job_member
from remediation.launcher.computation_events import LONGEST_NAME, LONGEST_REASON
from remediation.launcher.worker.worker_exit import explanation


def test_an_exception_of_the_main_thread_is_how_the_worker_dies(tmp_path: Path) -> None:
    member = made(tmp_path)
    member.raises(thread="", fatal=True)
    assert [event.name for event in member.events] == ["exception"]
    assert member.workers[0].exception == "ValueError"


def test_what_is_heard_of_late_is_told_with_the_time_at_which_it_happened(tmp_path: Path) -> None:
    """The launcher was stopped for as long as a minute."""

    async def heard() -> Member:
        member, now = Member(tmp_path), time.monotonic()
        for worker in member.workers:
            worker.began = now - 100.0
        member.raises(raised_s=now - 60.0)
        member.all.exited(member.workers[1].pid, int(signal.SIGKILL), now - 59.0)
        member.raises(raised_s=now - 1e9)
        return member

    raised, killed, false = asyncio.run(heard()).events
    assert killed.time - raised.time == pytest.approx(1.0, abs=0.5)
    assert killed.time < SystemClock().now() - 50.0
    assert raised.time - false.time < 50.0, "before it was started nothing can have happened to it"
    assert killed.monotonic_s - raised.monotonic_s == pytest.approx(1.0)
    assert killed.monotonic_s == pytest.approx(time.monotonic() - (SystemClock().now() - killed.time), abs=0.5), "both clocks tell of the same moment"


def test_the_users_own_line_is_told_where_the_traceback_ends_in_a_library(tmp_path: Path) -> None:
    member = made(tmp_path)
    lines = '  File "/home/ada/train.py", line 9, in save\n    torch.save(state, path)\n  File "/venv/lib/python3.11/site-packages/torch/s.py", line 1, in save\n    raise\n'
    member.raises(thread="", message="No space left on device", traceback=lines)
    assert member.events[0].attributes["frame"] == "train.py:9 in save"


def test_twin_an_exception_that_ends_a_thread_is_told_and_the_worker_does_not_die_of_it(tmp_path: Path) -> None:
    member = made(tmp_path)
    member.raises(thread="reporter", fatal=False)
    (event,) = member.events
    assert (event.name, event.attributes["thread"]) == ("thread.exception", "reporter")
    assert (member.workers[0].exception, member.workers[0].failure) == ("", None)


URL = '  File "/home/ada/train.py", line 212, in load\n    urlopen(url)\n  File "/usr/lib/python3.11/socket.py", line 1, in connect\n    raise err\n'
TRACEBACK = "Traceback (most recent call last):\n  ...\nRuntimeError: Connection closed by peer\n"
WATCHDOG = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what(): [Rank 1] Watchdog caught collective operation timeout\n"


@pytest.mark.parametrize(
    ("code", "log", "elastic", "status"),
    [
        (1, TRACEBACK, False, "connection refused or reset"),
        (1, TRACEBACK, True, ""),
        (3, "gave up after 3 bad samples, see the watchdog's log\n", False, ""),
        (1, f"{URL}ConnectionRefusedError: [Errno 111] Connection refused\n", False, ""),
        (-signal.SIGABRT, WATCHDOG, False, "nccl timeout"),
        (-signal.SIGSEGV, "step 40 loss 2.5\n", False, ""),
    ],
    ids=["printed, and chosen", "of a loss that an elastic worker lived through", "no exception", "a service that the script asks", "NCCL's watchdog", "nothing"],
)
def test_an_end_is_explained_by_what_its_log_names(tmp_path: Path, code: int, log: str, elastic: bool, status: str) -> None:
    worker = made(tmp_path).workers[0]
    worker.elastic = elastic
    assert explanation(worker, code, log) == status


def test_what_an_exception_tells_of_the_machine_explains_the_end_that_follows(tmp_path: Path) -> None:
    async def end() -> Member:
        member = Member(tmp_path)
        member.raises(message="CUDA error: uncorrectable ECC error encountered", type="RuntimeError")
        member.member.worker_ended(member.workers[0], 1 << 8)
        return member

    (death,) = [body for kind, body in asyncio.run(end()).reported if kind == "death"]
    assert (death["explained"], death["failure"], death["code"]) == ("ecc error", None, 1)


def test_an_end_with_zero_is_told_and_reported_once_all_of_the_node_have_ended(tmp_path: Path) -> None:
    member = made(tmp_path)

    async def end() -> None:
        for worker in member.workers:
            worker.end = 0
            member.member.worker_ended(worker, 0)

    asyncio.run(end())
    assert [(event.name, event.attributes["rank"]) for event in member.events] == [("worker.finished", "0"), ("worker.finished", "1")]
    assert [kind for kind, _ in member.reported] == ["worker_finished", "worker_finished", "finished"]


def test_twin_a_connection_that_broke_as_the_peers_were_ended_is_no_event(tmp_path: Path) -> None:
    """All workers are restarted by command: those of another node were ended a moment before."""
    member = made(tmp_path)
    member.workers[0].order_end(100.0)
    member.raises(raised_s=99.9, type="RuntimeError", message="Connection closed by peer")
    assert member.events == []


SYMPTOM = {"type": "RuntimeError", "message": "Connection closed by peer"}


@pytest.mark.parametrize("printed", ["", f"Traceback (most recent call last):\n{URL}ConnectionRefusedError: [Errno 111] Connection refused\n"])
def test_a_url_of_the_scripts_that_refuses_is_told_at_once_and_counts_as_the_programs(tmp_path: Path, printed: str) -> None:
    async def end() -> Member:
        member = Member(tmp_path)
        (tmp_path / "log").write_text(printed)
        member.raises(type="ConnectionRefusedError", message="[Errno 111] Connection refused", traceback=URL)
        assert [event.name for event in member.events] == ["exception"]
        member.member.worker_ended(member.workers[0], 1 << 8)
        return member

    (death,) = [body for kind, body in asyncio.run(end()).reported if kind == "death"]
    assert (death["symptom"], death["explained"], death["failure"]["frame"]) == (False, "", "train.py:212 in load")


def test_a_connection_that_broke_is_told_with_the_workers_end(tmp_path: Path) -> None:
    async def end() -> Member:
        member = Member(tmp_path)
        member.raises(**SYMPTOM)
        assert member.events == []
        member.member.worker_ended(member.workers[0], 1 << 8)
        return member

    member = asyncio.run(end())
    assert [event.name for event in member.events] == ["exception", "exit"]
    assert [kind for kind, _ in member.reported] == ["death"]


def test_a_connection_that_broke_is_told_though_the_worker_does_not_end_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_member, "SYMPTOM_S", 0.01)

    async def go_on() -> Member:
        member = Member(tmp_path)
        member.raises(**SYMPTOM)
        while not member.events:
            await asyncio.sleep(0.001)
        return member

    assert [event.name for event in asyncio.run(go_on()).events] == ["exception"]


def test_twin_a_connection_that_broke_as_the_order_to_end_was_on_its_way_is_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers' launcher had it a moment earlier: an eviction by command was told as a network error."""
    monkeypatch.setattr(job_member, "SYMPTOM_S", 0.01)

    async def order() -> Member:
        member = Member(tmp_path)
        member.raises(**SYMPTOM)
        member.workers[0].order_end(asyncio.get_running_loop().time())
        while member.member._held:
            await asyncio.sleep(0.001)
        member.workers[0].overtaken = True
        member.member.worker_ended(member.workers[0], None)
        return member

    member = asyncio.run(order())
    assert member.events == []
    assert [kind for kind, _ in member.reported] == ["late_failure"]


@pytest.mark.parametrize(("message", "told"), [("Connection closed by peer", ["late_failure"]), ("negative length", ["death"])])
def test_who_is_seen_to_have_ended_only_as_all_are_ended_is_told_unless_it_missed_a_peer(tmp_path: Path, message: str, told: list[str]) -> None:
    async def end() -> Member:
        member = Member(tmp_path)
        member.workers[0].dying = member.workers[0].doubtful = True
        member.raises(type="RuntimeError", message=message)
        member.member.worker_ended(member.workers[0], 1 << 8)
        return member

    member = asyncio.run(end())
    assert [kind for kind, _ in member.reported] == told
    assert [event.name for event in member.events] == (["exception", "exit"] if told == ["death"] else [])


def test_twin_who_ended_with_a_code_as_all_were_ended_by_command_is_no_event(tmp_path: Path) -> None:
    """It may have missed a peer of another node that was ended a moment before, whatever it made of that."""

    async def end() -> Member:
        member = Member(tmp_path)
        worker = member.workers[0]
        worker.dying = worker.doubtful = True
        member.all.exited(worker.pid, 3 << 8)
        return member

    member = asyncio.run(end())
    assert ([kind for kind, _ in member.reported], member.events) == (["late_failure"], [])


def test_a_launcher_votes_once_the_coordinator_knows_what_its_workers_had_died_of(tmp_path: Path) -> None:
    layout = Layout(job="t/j/r", epoch=2, time=1.0, coordinator="n1", launchers={}, placements=(), reason="death")

    async def vote() -> tuple[bool, Body]:
        member = Member(tmp_path)
        for worker in member.workers:
            member.all.exited(worker.pid, 1 << 8)
        asked = asyncio.create_task(member.member.obey(Command(action="prepare", arguments={"layout": msgspec.to_builtins(layout)})))
        while member.votes.record.promised < 2 or len(member.reported) < 2:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.to_thread(int)
        early = asked.done()
        member.known.set()
        return early, await asked

    assert asyncio.run(vote()) == (False, {"vote": True, "promised": 0, "undecided": []})


def test_processes_that_the_kernel_holds_are_looked_for_again_and_the_launcher_joins_once_they_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in an uninterruptible sleep, on a disk that does not answer: SIGKILL waits with it."""
    monkeypatch.setattr(job_member, "RELEASE_S", 0.01)

    async def play() -> None:
        member, released = Member(tmp_path, StallConfig(end_s=0.01)), asyncio.Event()
        member.known.set()
        member.member.released = released.set
        layout = Layout(job="t/j/r", epoch=2, time=0.0, coordinator="n0", launchers={"n0": "n0:1"}, placements=())
        with pytest.raises(ControlError, match="do not end though killed"):
            await member.member.obey(Command(action="prepare", job="t/j/r", epoch=2, arguments={"layout": msgspec.to_builtins(layout)}))
        assert not released.is_set()
        for worker in member.workers:
            member.all.exited(worker.pid, int(signal.SIGKILL))
        async with asyncio.timeout(5):
            await released.wait()
        await member.member.close()

    asyncio.run(play())


# --- kills for want of memory -----------------------------------------------------------------------------------------

KILLED_CHILD = {"type": "RuntimeError", "message": "DataLoader worker (pid 41) is killed by signal: Killed. ", "traceback": URL}


def with_kills(folder: Path, kills: int, *, status: int, then: int | None = None, **raised: object) -> Member:
    """The workers' cgroup counts so many kills; the first raises, or does not, and ends, and then the second."""
    kernel = Kernel(folder, 2)

    async def end() -> Member:
        member = Member(folder)
        member.all._memory = kernel.watch()
        for worker in member.workers:
            kernel.member(worker.pid)
            member.all._memory.watch(worker.pid)
        kernel.clock.advance(0.01)
        kernel.count("pod/job", kills=kills)
        kernel.clock.advance(0.01)
        if raised:
            member.raises(**raised)
        member.member.worker_ended(member.workers[0], status)
        if then is not None:
            member.member.worker_ended(member.workers[1], then)
        return member

    return asyncio.run(end())


def test_a_worker_that_raises_because_its_child_was_killed_for_memory_has_no_memory(tmp_path: Path) -> None:
    member = with_kills(tmp_path, 1, status=1 << 8, **KILLED_CHILD)
    raised, ended = member.events
    assert {raised.attributes["status"], ended.attributes["status"]} == {"out of memory"}
    assert "out-of-memory killer ended a process beside it" in raised.message
    (death,) = [body for kind, body in member.reported if kind == "death"]
    assert death["failure"]["memory"], "another node may have it"


def test_twin_the_same_words_without_such_a_kill_stay_what_they_are(tmp_path: Path) -> None:
    member = with_kills(tmp_path, 0, status=1 << 8, **KILLED_CHILD)
    assert [event.attributes.get("status") for event in member.events] == [None, None]
    (death,) = [body for kind, body in member.reported if kind == "death"]
    assert (death["failure"]["memory"], death["explained"]) == (False, "")


@pytest.mark.parametrize(
    ("status", "kills", "told"),
    [(137 << 8, 1, "out of memory"), (1 << 8, 1, "out of memory"), (int(signal.SIGKILL), 1, "out of memory"), (1 << 8, 0, ""), (int(signal.SIGKILL), 0, "")],
)
def test_an_end_without_a_word_is_asked_of_too(tmp_path: Path, status: int, kills: int, told: str) -> None:
    member = with_kills(tmp_path, kills, status=status)
    assert [event.attributes.get("status", "") for event in member.events] == [told]
    assert [body["explained"] for kind, body in member.reported if kind == "death"] == [told]


@pytest.mark.parametrize("raised", [SYMPTOM, {"type": "RuntimeError", "message": "CUDA error: uncorrectable ECC error encountered"}])
def test_twin_a_worker_that_missed_a_peer_or_its_gpu_leaves_the_kill_to_whom_it_struck(tmp_path: Path, raised: dict[str, str]) -> None:
    member = with_kills(tmp_path, 1, status=1 << 8, then=int(signal.SIGKILL), **raised)
    assert [event.attributes.get("status", "") for event in member.events if event.name == "exit"] == ["", "out of memory"]


def test_a_death_that_cannot_be_explained_is_reported_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would start the worker again, and the job would wait for it for ever."""

    def unreadable(*_arguments: object, **_options: object) -> list[str]:
        raise ValueError("a log that nobody foresaw")

    async def ended() -> list[tuple[str, Body]]:
        member = Member(tmp_path)
        monkeypatch.setattr(job_member, "last_lines", unreadable)
        member.all.exited(member.workers[0].pid, int(signal.SIGKILL))
        return member.reported

    [(kind, body)] = asyncio.run(ended())
    assert (kind, body["worker"], body["code"]) == ("death", "r/n0/0", -signal.SIGKILL)


def test_a_gradient_that_is_no_number_is_told_with_its_tensor(tmp_path: Path) -> None:
    member = made(tmp_path)
    member.says("bad_gradient", step=41, tensor="blocks.3." + "x" * 1000, shape="64x64")
    member.says("bad_gradient", step=42, tensor="", shape="64x64")
    assert [(event.name, event.entity.name) for event in member.events] == [("gradient.not_finite", member.workers[0].name)] * 2
    assert [len(event.attributes["tensor"]) for event in member.events] == [LONGEST_NAME, 0]
    assert "a tensor of 64x64" in member.events[1].message


def test_a_step_that_differs_when_it_is_run_again_and_the_end_of_replays_are_told(tmp_path: Path) -> None:
    member = made(tmp_path)
    member.says("replay_differs", step=511)
    member.says("replay_ended", step=512, reason="x" * 10_000)
    assert [(event.name, event.entity.name) for event in member.events] == [("step.replayed_differs", member.workers[0].name), ("step.replay_ended", member.workers[0].name)]
    assert member.events[0].attributes["step"] == "511"
    assert len(member.events[1].attributes["reason"]) == LONGEST_REASON
