"""Time of the phases on a GPU, by events in its stream: a fake at the border of torch, whose streams work by the host's clock."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import fault_drills, gpu_phases, probe, step_records
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, StepRecord
from fakes.cuda import Clock, Gpu, Scalar, Stream


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gpu(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu(clock)
    monkeypatch.setitem(sys.modules, "torch", made.torch())
    return made


Watched = tuple[Monitor, RingReader]


def step(monitor: Monitor, gpu: Gpu, number: int, *, forward: float = 20, backward: float = 40, launch: float = 1) -> None:
    """The host needs `launch` ms for each of three phases, the GPU longer; the batch is copied in no time."""
    monitor.begin(number)
    for phase, milliseconds in {"forward": forward, "backward": backward, "optimizer": 4.0}.items():
        monitor.mark(phase)
        gpu.work(milliseconds)
        gpu.clock.pass_ms(launch)
    monitor.mark("other")
    monitor.end()


def times(record: StepRecord) -> dict[str, Any]:
    """Milliseconds on the GPU."""
    return {name: pytest.approx(1e3 * value) for name, value in record.values.items() if name.startswith("gpu_")}


def test_phases_are_timed_by_the_gpu_and_not_by_the_host(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    step(monitor, gpu, 0)
    assert reader.steps(-1) == [], "held back, never waited for"
    gpu.clock.pass_ms(100)
    monitor.begin(1)
    (record,) = reader.steps(-1)
    assert record.values["forward_s"] == pytest.approx(0.001)
    assert times(record) == {"gpu_forward_s": 20, "gpu_backward_s": 40, "gpu_optimizer_s": 4, "gpu_lag_s": 2}
    assert (reader.now().faults, gpu.forbidden) == (0, [])


@pytest.mark.parametrize("numbered", [True, False])
def test_torch_is_asked_for_a_stream_that_stays_once_where_it_tells_numbers(
    watched: Watched, gpu: Gpu, numbered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object of a stream costs ten times what its number does."""
    monkeypatch.setitem(sys.modules, "torch", gpu.torch(numbered=numbered))
    monitor, reader = watched
    for number in range(5):
        step(monitor, gpu, number)
        gpu.clock.pass_ms(100)
    monitor.begin(5)
    assert [times(record)["gpu_forward_s"] for record in reader.steps(-1)] == [20] * 5
    assert (gpu.asked == 1) is numbered


def test_a_host_that_is_slower_than_its_gpu_has_no_lag(watched: Watched, gpu: Gpu) -> None:
    """The time of a phase holds what the stream waits for the host: the kernel takes 5 ms, the next comes after 30."""
    monitor, reader = watched
    for number in range(2):
        step(monitor, gpu, number, forward=5, backward=5, launch=30)
    first = times(reader.steps(-1)[0])
    assert first == {"gpu_forward_s": 30, "gpu_backward_s": 30, "gpu_optimizer_s": 30, "gpu_lag_s": 0}


def test_steps_that_overlap_keep_their_own_times(watched: Watched, gpu: Gpu) -> None:
    """The host is five steps ahead."""
    monitor, reader = watched
    for number in range(5):
        step(monitor, gpu, number, forward=20 + number)
    assert reader.steps(-1) == []
    gpu.clock.pass_ms(1000)
    monitor.begin(5)
    records = reader.steps(-1)
    assert [record.number for record in records] == [0, 1, 2, 3, 4]
    assert [times(record)["gpu_forward_s"] for record in records] == [20, 21, 22, 23, 24]
    assert [round(record.end, 3) for record in records] == [1.003, 1.006, 1.009, 1.012, 1.015]
    assert times(records[4])["gpu_lag_s"] == 14, "since the end of the first forward, which the GPU had not reached yet"


def test_the_same_phase_again_adds_up_and_a_nested_one_is_taken_out(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    monitor.begin(0)
    monitor.mark("other")
    for _ in range(2):
        with monitor.phase("forward"):
            gpu.work(10)
            with monitor.phase("communication"):
                gpu.work(3)
            gpu.work(5)
    gpu.clock.pass_ms(100)
    monitor.end()
    monitor.begin(1)
    assert times(reader.steps(-1)[0]) == {"gpu_forward_s": 30, "gpu_communication_s": 6, "gpu_other_s": 64, "gpu_lag_s": 0}


def test_an_event_that_never_completes_costs_its_steps_their_times_and_no_more(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    step(monitor, gpu, 0)
    gpu.clock.pass_ms(100)
    gpu.hang()
    for number in range(1, 1000):
        step(monitor, gpu, number)
    records = reader.steps(-1)
    assert [record.number for record in records] == list(range(1000 - len(records), 1000)), "without a pool there is nothing to wait for"
    assert not any(name.startswith("gpu_") for record in records for name in record.values)
    assert gpu.events == gpu_phases.EVENTS
    assert monitor.status()["gpu_steps_missed"] > 900
    assert reader.now().faults == 0


def test_a_gpu_that_has_caught_up_is_timed_again(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    for number in range(100):  # 100 steps of 64 ms, and the host hands each over in 3
        step(monitor, gpu, number)
    gpu.clock.pass_ms(10_000)
    for number in range(100, 103):
        step(monitor, gpu, number)
        gpu.clock.pass_ms(100)
    monitor.stop()
    assert times(reader.steps(100)[-1])["gpu_backward_s"] == 40
    assert gpu.events <= gpu_phases.EVENTS


def test_records_are_held_back_for_so_many_steps_at_most(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    gpu.hang()
    for number in range(step_records.HELD + 3):
        step(monitor, gpu, number)
    assert [record.number for record in reader.steps(-1)] == [0, 1, 2]
    monitor.stop()
    assert len(reader.steps(-1)) == step_records.HELD + 3


def test_times_that_cannot_be_had_are_given_up_and_training_goes_on(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    gpu.bad_times = True
    for number in range(20):
        step(monitor, gpu, number)
        gpu.clock.pass_ms(100)
    assert [record.number for record in reader.steps(-1)] == list(range(20))
    assert reader.now().faults == gpu_phases.FAULTS
    calls = gpu.calls
    step(monitor, gpu, 20)
    assert gpu.calls == calls, "nothing more is asked of it"
    assert reader.steps(19)[0].values["forward_s"] == pytest.approx(0.001)


def test_a_lost_device_is_asked_three_times_and_no_more(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    step(monitor, gpu, 0)
    gpu.broken = True
    calls = gpu.calls
    for number in range(1, 5):
        step(monitor, gpu, number)
    assert gpu.calls - calls == gpu_phases.FAULTS
    assert [record.number for record in reader.steps(-1)] == [0, 1, 2, 3, 4]
    assert reader.now().faults == gpu_phases.FAULTS


def test_a_fault_now_and_then_costs_the_steps_that_were_under_way(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    for number in range(12):
        gpu.broken = number % 3 == 1
        monitor.begin(number)
        gpu.broken = False
        monitor.mark("forward")
        gpu.work(20)
        monitor.end()
        gpu.clock.pass_ms(50)
    monitor.stop()
    found = [times(record).get("gpu_forward_s") for record in reader.steps(-1)]
    assert found == [None, None, 20, *(None, None, 20) * 3], "the step before had not been read yet"
    assert reader.now().faults == 4


@pytest.mark.parametrize("within", ["forward", "backward", "optimizer"])
def test_nothing_is_asked_of_the_gpu_while_a_graph_is_captured(watched: Watched, gpu: Gpu, within: str) -> None:
    monitor, reader = watched
    for number in range(3):
        monitor.begin(number)
        for phase in ("forward", "backward", "optimizer"):
            gpu.capturing = number == 1 and phase == within
            monitor.mark(phase)
            gpu.work(10)
        monitor.end()
        gpu.capturing = False
        gpu.clock.pass_ms(50)
    monitor.stop()
    assert gpu.forbidden == []
    assert [times(record).get("gpu_forward_s") for record in reader.steps(-1)] == [10, None, 10]
    assert monitor.status()["gpu_steps_missed"] == 1


def test_a_device_number_is_not_asked_for_while_a_graph_is_captured(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    monitor.begin(0)
    gpu.capturing = True
    monitor.mark("forward")
    gpu.capturing = False
    gpu.work(30)
    monitor.log(loss=Scalar(2.5))
    monitor.end()
    monitor.begin(1)
    gpu.clock.pass_ms(50)
    gpu.capturing = True
    monitor.mark("forward")
    assert (gpu.forbidden, reader.steps(-1)) == ([], [])
    gpu.capturing = False
    monitor.mark("backward")
    assert reader.steps(-1)[0].values["loss"] == 2.5


def test_a_step_whose_phase_ends_in_another_stream_is_not_timed_and_the_next_is(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    main, other = gpu.stream, Stream(gpu)
    for number, stream in enumerate((main, other, main)):
        monitor.begin(number)
        monitor.mark("forward")
        gpu.work(10)
        gpu.stream = stream
        monitor.mark("backward")
        gpu.work(10)
        monitor.end()
        gpu.stream = main
        gpu.clock.pass_ms(50)
    monitor.stop()
    found = {"gpu_forward_s": 10, "gpu_backward_s": 10, "gpu_lag_s": 0}
    assert [times(record) for record in reader.steps(-1)] == [found, {}, found]


def test_steps_in_streams_of_their_own_are_timed_each_in_its_own(watched: Watched, gpu: Gpu) -> None:
    """The second step's stream is idle while that of the first has work for 60 ms: it is there before."""
    monitor, reader = watched
    other = Stream(gpu)
    for number in range(2):
        monitor.begin(number)
        monitor.mark("forward")
        gpu.work(60)
        gpu.clock.pass_ms(1)
        monitor.mark("backward")
        gpu.work(10)
        if number == 0:
            gpu.stream = other  # and the first one ends there
        gpu.clock.pass_ms(1)
        monitor.mark("other")
        monitor.end()
    gpu.clock.pass_ms(500)
    monitor.stop()
    assert [times(record).get("gpu_forward_s") for record in reader.steps(-1)] == [None, 60]
    assert reader.now().faults == 0


def test_no_event_is_made_on_another_device(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    step(monitor, gpu, 0)
    gpu.stream = Stream(gpu, device_index=1)
    step(monitor, gpu, 1)
    monitor.stop()
    assert reader.now().faults == 0
    assert monitor.status()["gpu_steps_missed"] == 1


def test_a_mark_on_the_host_alone_leaves_the_step_untimed(watched: Watched, gpu: Gpu) -> None:
    """A script that took the method before its first step marks past us."""
    monitor, reader = watched
    taken = monitor.mark
    for number in range(2):
        monitor.begin(number)
        taken("forward")
        gpu.work(10)
        taken("other")
        monitor.end()
        gpu.clock.pass_ms(50)
    monitor.stop()
    assert [times(record) for record in reader.steps(-1)] == [{}, {}]
    assert reader.now().faults == 0


def test_between_two_steps_nothing_is_timed(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    for number in range(2):
        step(monitor, gpu, number)
        with monitor.phase("evaluation"):
            gpu.work(500)
        gpu.clock.pass_ms(700)
    monitor.stop()
    assert [sorted(times(record)) for record in reader.steps(-1)] == [["gpu_backward_s", "gpu_forward_s", "gpu_lag_s", "gpu_optimizer_s"]] * 2


def test_a_forked_child_asks_nothing_of_its_parents_gpu(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    step(monitor, gpu, 0)
    child = os.fork()
    if child == 0:
        monitor.disable()  # as the hook of the probe does
        before = gpu.calls
        step(monitor, gpu, 1)
        monitor.stop()
        os._exit(int(gpu.calls != before))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    monitor.stop()
    assert [record.number for record in reader.steps(-1)] == [0]


def test_a_drill_that_strikes_while_the_gpu_is_asked_reaches_the_script(watched: Watched, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, _ = watched
    step(monitor, gpu, 0)

    def struck() -> bool:
        raise fault_drills.AcceleratorError

    monkeypatch.setattr(sys.modules["torch"].cuda, "is_current_stream_capturing", struck)
    with pytest.raises(fault_drills.AcceleratorError):
        monitor.begin(1)


def test_records_of_an_epoch_are_not_stored_in_the_next(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    monitor.set_epoch(1)
    step(monitor, gpu, 0)
    monitor.set_epoch(2)
    step(monitor, gpu, 1)
    monitor.stop()
    assert [(record.number, record.epoch) for record in reader.steps(-1)] == [(0, 1), (1, 2)]


# --- torch itself ---


def test_torch_has_what_is_asked_of_it() -> None:
    import torch

    cuda = torch.cuda
    assert all(callable(getattr(cuda, name)) for name in ("current_stream", "current_device", "is_current_stream_capturing", "is_initialized", "memory_allocated"))
    assert all(callable(getattr(cuda.Event, name)) for name in ("record", "query", "elapsed_time"))
    assert hasattr(torch.Stream, "device_index")


def test_a_script_on_the_cpu_has_its_torch_as_it_was(watched: Watched) -> None:
    import torch

    monitor, reader = watched
    for _ in monitor.steps("ab"):
        monitor.mark("forward")
        monitor.log(loss=torch.ones(()))
    assert not torch.cuda.is_initialized()
    assert "mark" not in vars(monitor)
    assert [record.values["loss"] for record in reader.steps(-1)] == [1.0, 1.0]
    assert reader.now().faults == 0


# --- whether there is a GPU ---------------------------------------------------------------------------------------


def test_a_torch_for_the_cpu_is_looked_at_once(watched: Watched, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, reader = watched
    monkeypatch.setitem(sys.modules, "torch", gpu.torch(cuda_version=None))
    step(monitor, gpu, 0)
    monkeypatch.setitem(sys.modules, "torch", gpu.torch())
    step(monitor, gpu, 1)
    assert gpu.calls == 0
    assert "mark" not in vars(monitor)
    assert [record.number for record in reader.steps(-1)] == [0, 1]


def test_a_gpu_is_not_initialised_for_it_and_is_timed_from_the_step_behind_its_first_use(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    gpu.initialised = False
    for number in range(3):
        step(monitor, gpu, number)
    assert (gpu.calls, gpu.forbidden) == (0, [])
    gpu.initialised = True
    step(monitor, gpu, 3)
    monitor.stop()
    gpu.clock.pass_ms(1000)
    step(monitor, gpu, 4)
    gpu.clock.pass_ms(100)
    monitor.stop()
    assert [("gpu_forward_s" in record.values) for record in reader.steps(-1)] == [False] * 4 + [True]


def test_a_gpu_on_which_the_script_has_nothing_is_left_alone(watched: Watched, gpu: Gpu) -> None:
    """Every worker's current device may be GPU 0 while each computes on its own: an event there would make a context."""
    monitor, _ = watched
    gpu.memory = 0
    for number in range(1000):
        step(monitor, gpu, number)
    assert gpu.events == 0
    assert gpu.calls <= 11, "the look takes 0.1 ms: at steps 1, 2, 4, 8, ..."


def test_a_torch_that_is_being_imported_is_none_yet(watched: Watched, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, reader = watched
    monkeypatch.setitem(sys.modules, "torch", object())
    step(monitor, gpu, 0)
    monkeypatch.delitem(sys.modules, "torch")
    step(monitor, gpu, 1)
    assert "torch" not in sys.modules
    assert reader.now().faults == 0


def test_a_look_that_fails_is_the_last(watched: Watched, gpu: Gpu) -> None:
    monitor, reader = watched
    gpu.broken = True
    for number in range(5):
        step(monitor, gpu, number)
    assert (gpu.calls, reader.now().faults) == (1, 1)
    assert [record.number for record in reader.steps(-1)] == [0, 1, 2, 3, 4]


def test_one_variable_switches_it_off(tmp_path: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_EYE_GPU_PHASES", "0")
    monkeypatch.setenv("EAGLE_EYE_RING", str(tmp_path / "ring"))
    monkeypatch.setattr(probe, "_connect", lambda *_: None)
    monitor = probe.monitor.__wrapped__()
    step(monitor, gpu, 0)
    assert gpu.calls == 0
    with RingReader.open(tmp_path / "ring") as reader:
        assert [record.number for record in reader.steps(-1)] == [0]
