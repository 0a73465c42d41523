"""Works or hangs: what several looks at a process prove."""

import pytest

from eagle_eye.activity.hang_verdict import ActivityKind, ProcessLook, judge
from eagle_eye.activity.native_caller import INTERPRETER
from eagle_eye.activity.native_threads import NativeThread
from eagle_eye.activity.python_stacks import BACKWARD, StackFrame
from eagle_eye.activity.thread_wait import RUNS, UNKNOWN, ThreadWait, WaitKind
from fakes.process_looks import ALL_REDUCE, LOCK, NATIVE_LOCK, SOCKET, TRAIN, VALIDATE, look, sleep, thread

THREADING = StackFrame("/usr/lib/python3.11/threading.py", 320, "wait")
TORCH = "/usr/lib/python3/site-packages/torch"
NATIVE = StackFrame(f"{TORCH}/cuda/streams.py", 90, "synchronize")
STORAGE = ThreadWait(WaitKind.STORAGE)


def verdict(*looks: ProcessLook, patience_s: float = 600.0) -> ActivityKind:
    return judge(looks, patience_s).kind


def test_fault_a_lock_that_no_thread_will_release_is_a_proof() -> None:
    still = look(TRAIN)
    activity = judge([still, still, still], 600.0)
    assert activity.kind is ActivityKind.HUNG
    assert activity.place == "train.py:33 step"
    assert "lock that nobody will release" in activity.doing


@pytest.mark.parametrize("other", [SOCKET, RUNS, UNKNOWN])
def test_twin_a_lock_that_another_thread_may_release_is_none(other: ThreadWait) -> None:
    still = look(TRAIN, others=((thread(VALIDATE, name="loader"), other),))
    assert verdict(still, still, still) is ActivityKind.STANDING


SAVE = StackFrame("/home/ada/save.py", 3, "write")
JOIN = StackFrame("/usr/lib/python3.11/threading.py", 1116, "join")
OUR_SAVE = StackFrame("/site-packages/eagle_eye/training/elastic/checkpointing.py", 116, "_is_writing")


def saves(*frames: StackFrame, name: str = "saver", wait: ThreadWait = STORAGE, holds_interpreter: bool = False) -> ProcessLook:
    return look(JOIN, *frames, others=((thread(SAVE, name=name, number=7), wait),), holds_interpreter=holds_interpreter)


@pytest.mark.parametrize("still", [saves(TRAIN), saves(OUR_SAVE, TRAIN, name="eagle-eye-checkpoint")])
def test_twin_who_waits_for_a_thread_of_its_own_that_saves_works(still: ProcessLook) -> None:
    """The fsync of a large save: no processor time and no bytes, for minutes."""
    activity = judge([still] * 4, 600.0)
    assert activity.kind is ActivityKind.WORKING
    assert activity.doing == f"waits in train.py:33 step while its thread {still.stacks[1].name} waits for its storage in save.py:3 write"


@pytest.mark.parametrize(("looks", "kind"), [
    ([saves(TRAIN, wait=LOCK)] * 3 + [saves(TRAIN)], ActivityKind.STANDING), ([saves(TRAIN)] + [saves(TRAIN, wait=LOCK)] * 3, ActivityKind.HUNG),
    ([saves(TRAIN, name="eagle-eye-probe")] * 4, ActivityKind.HUNG), ([saves(TRAIN, holds_interpreter=True)] * 4, ActivityKind.HUNG),
])  # fmt: skip
def test_fault_a_thread_that_writes_now_and_then_or_one_of_ours_hides_no_deadlock(looks: list[ProcessLook], kind: ActivityKind) -> None:
    assert verdict(*looks) is kind


def test_twin_a_native_thread_that_may_set_a_future_is_no_proof() -> None:
    """A download in Rust or C++ calls back; a pool that waits for work is not among those that a look shows."""
    waits = look(THREADING, TRAIN)
    downloads = waits._replace(native=(NativeThread("AwsEventLoop 1", SOCKET),))
    assert verdict(downloads, downloads) is ActivityKind.STANDING
    held = look(THREADING, TRAIN, holds_interpreter=True)._replace(native=downloads.native)
    assert verdict(held, held) is ActivityKind.HUNG, "it needs the interpreter for that"


@pytest.mark.parametrize(("still", "kind"), [
    (look(TRAIN), ActivityKind.STANDING), (look(TRAIN, wait=sleep(1e9)), ActivityKind.STANDING),
    (look(TRAIN, wait=ThreadWait(WaitKind.SIGNAL), holds_interpreter=True), ActivityKind.STANDING),
    (look(TRAIN, wait=ThreadWait(WaitKind.CHILD), state="D"), ActivityKind.HUNG),
])  # fmt: skip
def test_twin_whom_an_alarm_may_interrupt_is_no_proof_unless_the_kernel_holds_it(still: ProcessLook, kind: ActivityKind) -> None:
    assert verdict(*[still._replace(handles_alarm=True)] * 2) is kind


@pytest.mark.parametrize(("seconds", "kind"), [(3600.0, ActivityKind.STANDING), (1e9, ActivityKind.HUNG)])
def test_twin_a_thread_that_waits_with_a_time_out_may_wake_another(seconds: float, kind: ActivityKind) -> None:
    still = look(THREADING, TRAIN, others=((thread(THREADING, name="fetcher"), ThreadWait(WaitKind.LOCK, seconds, INTERPRETER)),))
    assert verdict(still, still) is kind


def test_threads_of_ours_and_idle_ones_release_nothing() -> None:
    idle = ((thread(THREADING, name="pool-1"), LOCK), (thread(THREADING, name="eagle-eye-probe"), SOCKET))
    assert verdict(look(TRAIN, others=idle), look(TRAIN, others=idle)) is ActivityKind.HUNG


def test_fault_the_interpreters_lock_held_in_a_wait_without_end_is_a_proof_whatever_the_others_do() -> None:
    still = look(TRAIN, holds_interpreter=True, others=((thread(VALIDATE, name="loader"), SOCKET),))
    assert verdict(still, still) is ActivityKind.HUNG


@pytest.mark.parametrize(("wait", "kind"), [
    (sleep(14.0), ActivityKind.WORKING), (sleep(599.0), ActivityKind.WORKING), (sleep(3600.0), ActivityKind.WORKING), (sleep(1e9), ActivityKind.HUNG),
    (ThreadWait(WaitKind.LOCK, 20.0), ActivityKind.WORKING), (ThreadWait(WaitKind.LOCK, 1800.0, INTERPRETER), ActivityKind.WORKING), (ThreadWait(WaitKind.LOCK, 1e6, INTERPRETER), ActivityKind.HUNG), (ThreadWait(WaitKind.LOCK, 1e6), ActivityKind.STANDING), (ThreadWait(WaitKind.LOCK, 1800.0, "libarrow.so.2100"), ActivityKind.STANDING), (ThreadWait(WaitKind.INPUT, 1e6), ActivityKind.STANDING), (SOCKET, ActivityKind.STANDING), (STORAGE, ActivityKind.WORKING), (UNKNOWN, ActivityKind.STANDING),
])  # fmt: skip
def test_what_will_wake_a_worker_decides(wait: ThreadWait, kind: ActivityKind) -> None:
    assert verdict(look(VALIDATE, wait=wait), look(VALIDATE, wait=wait)) is kind


@pytest.mark.parametrize("moved", [
    look(TRAIN, time=1.2), look(VALIDATE, time=1.2, io_bytes=1 << 20), look(VALIDATE, time=1.2, faults=500),
])  # fmt: skip
def test_twin_who_moves_works(moved: ProcessLook) -> None:
    activity = judge([look(VALIDATE), look(VALIDATE, time=0.4), moved], 600.0)
    assert activity.kind is ActivityKind.WORKING
    assert activity.doing.startswith("works in train.py:")


def test_a_long_computation_and_an_endless_loop_look_alike() -> None:
    activity = judge([look(TRAIN, wait=RUNS, state="R"), look(TRAIN, wait=RUNS, state="R", time=1.2, cpu_s=1.1)], 600.0)
    assert activity.kind is ActivityKind.SPINNING
    assert "computes in train.py:33 step" in activity.doing


def test_twin_who_has_a_gpu_may_wait_for_it() -> None:
    """`tensor.item()` computes while it waits for the GPU, and the GPU may wait for the peers."""
    activity = judge([look(TRAIN, wait=RUNS, state="R", uses_gpu=True), look(TRAIN, wait=RUNS, state="R", uses_gpu=True, time=1.2, cpu_s=1.1)], 600.0)
    assert activity.kind is ActivityKind.AWAITS_GPU
    assert "computes in train.py:33 step, or waits for its GPU" in activity.doing
    blocked = look(TRAIN, wait=ThreadWait(WaitKind.LOCK, caller="libcuda.so.580.65.06"), uses_gpu=True)
    assert verdict(blocked, blocked) is ActivityKind.AWAITS_GPU


@pytest.mark.parametrize("waits", [look(ALL_REDUCE, TRAIN), look(StackFrame("/usr/lib/python3/site-packages/torch/autograd/graph.py", 1, BACKWARD), TRAIN), look(ALL_REDUCE, TRAIN, time=1.2, cpu_s=1.0)])
def test_who_is_in_a_collective_waits_for_its_peers_whether_it_sleeps_or_polls(waits: ProcessLook) -> None:
    activity = judge([look(*waits.stacks[0].frames), waits], 600.0)
    assert activity.kind is ActivityKind.AWAITS_PEERS
    assert activity.place == "train.py:33 step"


IN_BACKWARD = StackFrame("/usr/lib/python3/site-packages/torch/autograd/graph.py", 1, BACKWARD)


@pytest.mark.parametrize(("first", "last", "flow"), [
    (look(ALL_REDUCE, TRAIN, tcp_bytes=10), look(ALL_REDUCE, TRAIN, time=1.2, tcp_bytes=160_010), "0.2 MB sent or received"),
    (look(ALL_REDUCE, TRAIN), look(ALL_REDUCE, TRAIN, time=1.2, io_bytes=8 << 20), "8.4 MB read or written"),
    (look(ALL_REDUCE, TRAIN, demand={1: 5.0}), look(ALL_REDUCE, TRAIN, time=1.2, cpu_s=0.5, demand={1: 5.1}), "0.4 s of processor time"),
    (look(IN_BACKWARD, TRAIN, demand={1: 5.0}), look(IN_BACKWARD, TRAIN, time=1.2, cpu_s=1.2, demand={1: 6.2}), "1.2 s of processor time"),
])  # fmt: skip
def test_twin_who_is_in_a_collective_that_goes_on_waits_for_nobody(first: ProcessLook, last: ProcessLook, flow: str) -> None:
    """A broadcast of weights over a slow network, before any step."""
    activity = judge([first, last], 600.0)
    assert activity.kind is ActivityKind.EXCHANGES
    assert activity.doing == f"exchanges data with its peers in train.py:33 step: {flow}"


@pytest.mark.parametrize(("first", "last"), [
    (look(ALL_REDUCE, TRAIN, tcp_bytes=10), look(ALL_REDUCE, TRAIN, time=1.2, tcp_bytes=30_010)),
    (look(ALL_REDUCE, TRAIN), look(ALL_REDUCE, TRAIN, time=1.2, io_bytes=100_000)),
    (look(ALL_REDUCE, TRAIN, demand={1: 5.0}), look(ALL_REDUCE, TRAIN, time=1.2, cpu_s=1.2, demand={1: 6.2})),
    (look(ALL_REDUCE, TRAIN, uses_gpu=True, demand={1: 5.0}), look(ALL_REDUCE, TRAIN, time=1.2, cpu_s=2.4, uses_gpu=True, demand={1: 6.2})),
])  # fmt: skip
def test_fault_heartbeats_logs_and_threads_that_poll_are_no_exchange(first: ProcessLook, last: ProcessLook) -> None:
    """MPI polls in the main thread, NCCL in one of its own."""
    assert verdict(first, last) is ActivityKind.AWAITS_PEERS


def test_twin_who_waits_for_its_own_processes_while_they_compute_works() -> None:
    assert verdict(look(TRAIN, wait=SOCKET), look(TRAIN, wait=SOCKET, time=1.2, cpu_s=1.1)) is ActivityKind.WORKING


def test_a_look_that_met_a_stack_on_the_move_does_not_count() -> None:
    assert verdict(look(TRAIN), look(), look(TRAIN)) is ActivityKind.HUNG


def test_who_goes_in_and_out_of_collectives_works() -> None:
    assert verdict(look(ALL_REDUCE, TRAIN), look(TRAIN), look(ALL_REDUCE, TRAIN)) is ActivityKind.WORKING


def test_a_process_stopped_by_a_signal_needs_no_stack() -> None:
    assert verdict(look(state="T")) is ActivityKind.STOPPED


def test_without_stacks_nothing_is_proved() -> None:
    activity = judge([look(), look()], 600.0)
    assert activity.kind is ActivityKind.UNKNOWN
    assert "eagle-eye doctor" in activity.doing


def test_twin_a_library_that_waits_may_wait_for_its_gpu() -> None:
    assert verdict(*[look(NATIVE, TRAIN, wait=NATIVE_LOCK, uses_gpu=True)] * 2) is ActivityKind.STANDING
    assert verdict(*[look(THREADING, TRAIN, uses_gpu=True)] * 2) is ActivityKind.HUNG


@pytest.mark.parametrize(("wait", "uses_gpu", "kind"), [
    (ThreadWait(WaitKind.CHILD), False, ActivityKind.HUNG), (SOCKET, False, ActivityKind.WORKING), (STORAGE, False, ActivityKind.WORKING),
    (UNKNOWN, False, ActivityKind.WORKING), (UNKNOWN, True, ActivityKind.STANDING),
])  # fmt: skip
def test_a_child_that_starts_no_program_is_a_proof_and_twin_a_slow_file_system_is_none(wait: ThreadWait, uses_gpu: bool, kind: ActivityKind) -> None:
    """In the state D; a call that is not known may be one to the GPU's driver, if there is one."""
    assert verdict(*[look(TRAIN, state="D", wait=wait, uses_gpu=uses_gpu)] * 2) is kind


def test_twin_who_waits_in_native_code_may_be_woken_by_threads_that_python_knows_nothing_of() -> None:
    """A loader in Rust or C++ whose own threads read from the network."""
    assert verdict(*[look(TRAIN, wait=NATIVE_LOCK)] * 2) is ActivityKind.STANDING
    assert verdict(*[look(TRAIN, wait=NATIVE_LOCK, holds_interpreter=True)] * 2) is ActivityKind.STANDING


def test_twin_a_lock_that_a_thread_in_native_code_may_release_is_no_proof() -> None:
    reads = look(THREADING, TRAIN, others=((thread(VALIDATE, name="loader"), NATIVE_LOCK),))
    assert verdict(reads, reads) is ActivityKind.STANDING
    idle = look(THREADING, TRAIN, others=((thread(THREADING, VALIDATE, name="loader"), ThreadWait(WaitKind.LOCK)),))
    assert verdict(idle, idle) is ActivityKind.HUNG, "the frame alone tells whose lock it is"


@pytest.mark.parametrize(("frames", "caller"), [
    ((TRAIN,), "libtorch_cpu.so"),
    ((StackFrame(f"{TORCH}/distributed/utils.py", 286, "_verify_param_shape_across_processes"), StackFrame(f"{TORCH}/nn/parallel/distributed.py", 1064, "__init__"), TRAIN), ""),
    ((StackFrame(f"{TORCH}/nn/parallel/distributed.py", 2100, "_default_broadcast_coalesced"), TRAIN), ""),
])  # fmt: skip
def test_who_waits_for_its_peers_in_native_code_awaits_them(frames: tuple[StackFrame, ...], caller: str) -> None:
    """An asynchronous collective's `wait()`, the constructor of DistributedDataParallel, its buffers."""
    assert verdict(*[look(*frames, wait=ThreadWait(WaitKind.LOCK, caller=caller))] * 2) is ActivityKind.AWAITS_PEERS


def test_fault_twin_the_users_model_that_hangs_within_its_data_parallel_wrapper_awaits_nobody() -> None:
    assert verdict(*[look(TRAIN, StackFrame(f"{TORCH}/nn/parallel/distributed.py", 1661, "forward"), VALIDATE)] * 2) is ActivityKind.HUNG


FSYNC = StackFrame(f"{TORCH}/distributed/checkpoint/filesystem.py", 472, "_write_files_from_queue")
PICKLE = StackFrame(f"{TORCH}/distributed/distributed_c10d.py", 3402, "_object_to_tensor")
BROADCAST = StackFrame(f"{TORCH}/distributed/distributed_c10d.py", 3800, "broadcast_object_list")
DTENSOR = StackFrame(f"{TORCH}/distributed/tensor/_dispatch.py", 180, "dispatch")
OLD_DTENSOR = StackFrame(f"{TORCH}/distributed/_tensor/_dispatch.py", 180, "dispatch")
UNPICKLE = StackFrame(f"{TORCH}/distributed/distributed_c10d.py", 3424, "_tensor_to_object")
RENDEZVOUS = StackFrame(f"{TORCH}/distributed/rendezvous.py", 180, "_file_rendezvous_handler")


@pytest.mark.parametrize(("frames", "wait", "kind"), [
    ((FSYNC, TRAIN), STORAGE, ActivityKind.WORKING), ((FSYNC, BROADCAST, TRAIN), STORAGE, ActivityKind.WORKING), ((PICKLE, BROADCAST, TRAIN), STORAGE, ActivityKind.WORKING),
    ((PICKLE, BROADCAST, TRAIN), RUNS, ActivityKind.SPINNING), ((DTENSOR, TRAIN), RUNS, ActivityKind.SPINNING), ((OLD_DTENSOR, TRAIN), RUNS, ActivityKind.SPINNING),
])  # fmt: skip
def test_twin_who_works_alone_within_torch_distributed_awaits_nobody(frames: tuple[StackFrame, ...], wait: ThreadWait, kind: ActivityKind) -> None:
    """A sharded checkpoint on its way to the disk, an object of gigabytes that is pickled, a DTensor's own part of a computation."""
    first = look(*frames, wait=wait, state="R", holds_interpreter=wait is RUNS)
    assert verdict(first, first._replace(time=1.2, counters=first.counters._replace(cpu_s=0.0 if wait is STORAGE else 1.2))) is kind


def test_fault_twin_who_waits_for_the_bytes_of_an_object_awaits_its_peers() -> None:
    """`.cpu()`, where NCCL's hosts wait for a broadcast: without the interpreter's lock."""
    waits = look(UNPICKLE, BROADCAST, TRAIN, wait=ThreadWait(WaitKind.LOCK, caller="libcuda.so.580.65.06"), uses_gpu=True)
    assert verdict(waits, waits) is ActivityKind.AWAITS_PEERS
    within = look(ALL_REDUCE, TRAIN, PICKLE, BROADCAST, TRAIN, holds_interpreter=True)
    assert verdict(within, within) is ActivityKind.AWAITS_PEERS, "a collective of the object's own"


def test_who_reads_a_file_now_and_then_in_a_rendezvous_awaits_its_peers() -> None:
    assert verdict(look(RENDEZVOUS, TRAIN, wait=STORAGE), *[look(RENDEZVOUS, TRAIN, wait=sleep(0.01))] * 3) is ActivityKind.AWAITS_PEERS


def test_twin_who_goes_from_one_collective_to_the_next_works() -> None:
    assert verdict(look(ALL_REDUCE, TRAIN), look(ALL_REDUCE, VALIDATE)) is ActivityKind.WORKING


def test_who_waits_for_a_signal_may_get_it_unless_it_holds_the_interpreter() -> None:
    waits = ThreadWait(WaitKind.SIGNAL)
    assert verdict(*[look(TRAIN, wait=waits)] * 2) is ActivityKind.STANDING
    assert verdict(*[look(TRAIN, wait=waits, holds_interpreter=True)] * 2) is ActivityKind.HUNG


def test_twin_whom_a_debugger_holds_is_paused_by_a_person() -> None:
    held = look(TRAIN, state="t", tracer="gdb, process 12")
    activity = judge([look(TRAIN), held, held], 600.0)
    assert activity.kind is ActivityKind.TRACED
    assert activity.doing == "is held by a debugger or a tracer, gdb, process 12, in train.py:33 step"


def test_fault_a_hang_of_which_somebody_took_a_stack_is_still_proved() -> None:
    assert verdict(look(TRAIN), look(TRAIN), look(TRAIN, state="t")) is ActivityKind.HUNG
    assert verdict(look(TRAIN, state="t"), look(TRAIN, state="t"), look(TRAIN)) is ActivityKind.UNKNOWN


@pytest.mark.parametrize(("name", "seconds", "kind"), [
    ("scores", 1.1, ActivityKind.WORKING), ("scores", 0.3, ActivityKind.STANDING), ("eagle-eye-probe", 1.1, ActivityKind.STANDING),
])  # fmt: skip
def test_twin_a_thread_of_its_own_that_gets_hardly_any_processor_works_all_the_same(name: str, seconds: float, kind: ActivityKind) -> None:
    """The main thread waits for it. Ours prove nothing: on a busy machine their short turns take long."""
    others = ((thread(VALIDATE, name=name, number=7), SOCKET), (thread(VALIDATE, name="loader", number=8), SOCKET))
    looks = [look(TRAIN, time=time, others=others, demand={1: 0.0, 7: 3.0 + seconds * time / 1.2, 8: 0.0}) for time in (0.0, 0.4, 0.8, 1.2)]
    assert verdict(*looks) is kind


def test_twin_who_gets_no_processor_on_a_busy_machine_does_not_stand() -> None:
    starved = look(VALIDATE, state="R", wait=RUNS, runnable=True)
    assert verdict(starved, starved, starved) is ActivityKind.SPINNING
    child = look(VALIDATE, wait=SOCKET, runnable=True)
    assert verdict(child, child, child) is ActivityKind.WORKING
    once = look(VALIDATE, wait=SOCKET, runnable=True)
    assert verdict(once, look(VALIDATE, wait=SOCKET), look(VALIDATE, wait=SOCKET)) is ActivityKind.STANDING
