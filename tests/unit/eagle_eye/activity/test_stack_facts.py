"""What is said of a sampled process beside its stack."""

import pytest

from eagle_eye.activity.awaited_call import AwaitedCall
from eagle_eye.activity.hang_verdict import ActivityKind, ProcessLook
from eagle_eye.activity.kernel_state import KernelState
from eagle_eye.activity.motion import Motion
from eagle_eye.activity.open_files import OpenFile
from eagle_eye.activity.python_stacks import NoStacks
from eagle_eye.activity.stack_facts import ProcessReport, report
from eagle_eye.activity.stack_sampler import StackSample
from eagle_eye.activity.thread_wait import RUNS, UNKNOWN, ThreadWait, WaitKind
from fakes.process_looks import ALL_REDUCE, LOCK, SOCKET, TRAIN, look, sleep

FILES = {4: OpenFile(4, "socket", "tcp 10.0.0.1:5 → 10.0.0.2:29500"), 7: OpenFile(7, "file", "/mnt/nfs/shard"), **{n: OpenFile(n, "pipe", str(n)) for n in range(20, 30)}}


def sample(seen: ProcessLook, *, wchan: str = "", held: tuple[str, ...] = (), call: AwaitedCall = AwaitedCall(), why: NoStacks | None = None, wait: ThreadWait = UNKNOWN) -> StackSample:  # noqa: B008 -- a value
    return StackSample(seen, KernelState(seen.state, wchan, held), call, seen.waits[0] if seen.stacks else wait, why)


def told(*samples: StackSample) -> ProcessReport:
    return report(samples, 600.0, FILES.get)


def sentences(*samples: StackSample) -> list[str]:
    return [fact.text for fact in told(*samples).facts]


def test_who_is_held_in_the_kernel_is_told_with_the_place_and_the_file() -> None:
    held = sample(look(TRAIN, state="D", wait=ThreadWait(WaitKind.STORAGE)), wchan="rpc_wait_bit_killable", call=AwaitedCall((7,)))
    assert "state D (uninterruptible sleep) in rpc_wait_bit_killable, in 2 of 2 looks; waits for file /mnt/nfs/shard" in sentences(held, held)


def test_other_threads_that_are_held_in_the_kernel_are_named() -> None:
    seen = sample(look(TRAIN), held=("pt_autograd_0 in nfs_wait",))
    assert "thread pt_autograd_0 in nfs_wait: state D" in sentences(seen, seen)


@pytest.mark.parametrize(("wait", "call", "words"), [
    (LOCK, AwaitedCall(), "a lock of Python"), (ThreadWait(WaitKind.LOCK, 20.0), AwaitedCall(), "a lock, with a time-out"),
    (ThreadWait(WaitKind.LOCK, caller="libtorch_cpu.so"), AwaitedCall(), "its peers, in libtorch_cpu.so"), (ThreadWait(WaitKind.LOCK, caller="libcuda.so.1"), AwaitedCall(), "its GPU, in libcuda.so.1"),
    (ThreadWait(WaitKind.LOCK, caller="libarrow.so"), AwaitedCall(), "a lock in libarrow.so"), (sleep(9.0), AwaitedCall(), "a timer"), (RUNS, AwaitedCall(), ""), (UNKNOWN, AwaitedCall(), ""),
    (SOCKET, AwaitedCall((4,)), "socket tcp 10.0.0.1:5 → 10.0.0.2:29500"), (SOCKET, AwaitedCall((99,)), "input, or another process"),
    (SOCKET, AwaitedCall(tuple(range(20, 30))), "pipe 20, pipe 21, pipe 22 and 7 more"), (SOCKET, AwaitedCall(child=1 << 22), "child 4194304 (gone)"),
    (ThreadWait(WaitKind.STORAGE), AwaitedCall(path="/mnt/nfs/x"), "file /mnt/nfs/x"),
])  # fmt: skip
def test_what_the_main_thread_waits_for(wait: ThreadWait, call: AwaitedCall, words: str) -> None:
    assert told(sample(look(TRAIN, wait=wait), call=call)).waits_for == words


def test_twin_who_computes_or_is_stopped_waits_for_nothing() -> None:
    running = sample(look(TRAIN, wait=RUNS, state="R"), call=AwaitedCall((4,)))
    assert (told(running, running).process.motion, told(running, running).waits_for) == (Motion.COMPUTES, "")
    stopped = sample(look(TRAIN, wait=sleep(9.0), state="T"))
    assert (told(stopped, stopped).process.motion, told(stopped, stopped).waits_for) == (Motion.STOPPED, "")


def test_the_verdict_is_that_of_the_agent() -> None:
    found = told(sample(look(ALL_REDUCE, TRAIN)), sample(look(ALL_REDUCE, TRAIN)))
    assert found.activity is not None
    assert (found.activity.kind, found.process.awaits_peers) == (ActivityKind.AWAITS_PEERS, True)
    assert found.facts[0].text == "waits for its peers in train.py:33 step"
    assert told(sample(look(TRAIN))).activity is None, "one look proves nothing"


def test_a_zombie_has_no_verdict_and_is_not_said_to_be_unreadable() -> None:
    assert sentences(sample(look(state="Z"), why=NoStacks.NOT_PYTHON)) == ["state Z (zombie: it has ended, and its parent has not asked for its exit code)"]


def test_why_there_is_no_stack_is_said_beside_what_the_kernel_knows() -> None:
    blind = sample(look(), why=NoStacks.NOT_ALLOWED, wait=SOCKET, call=AwaitedCall((4,)))
    assert sentences(blind, blind) == ["state S (sleeps); waits for socket tcp 10.0.0.1:5 → 10.0.0.2:29500", "no stack: this user may not look into it"]
