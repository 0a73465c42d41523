import errno
import itertools
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_eye.training import fault_drills, messages, probe_socket
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter
from eagle_eye.training.step_records import DeviceScalars
from fakes.cuda import Clock, Scalar


@pytest.fixture
def clock() -> Clock:
    return Clock()


Watched = tuple[Monitor, RingReader]


def test_a_step_holds_its_phases(watched: Watched, clock: Clock) -> None:
    monitor, reader = watched

    def loader() -> Iterator[int]:
        clock.pass_ms(5)
        yield 7

    for _ in monitor.steps(loader(), start=4):
        with monitor.phase("forward"):
            clock.pass_ms(20)
        monitor.mark("backward")
        clock.pass_ms(30)
        monitor.mark("other")
        clock.pass_ms(1)
        monitor.log(loss=2.0, tokens=64, accuracy=0.5)
    (record,) = reader.steps(-1)
    assert record.number == 4
    assert record.values == pytest.approx(
        {
            "step_s": 0.056,
            "data_s": 0.005,
            "forward_s": 0.020,
            "backward_s": 0.030,
            "other_s": 0.001,
            "loss": 2.0,
            "tokens": 64.0,
            "accuracy": 0.5,
        }
    )
    assert not reader.now().running


def test_phases_may_be_nested(watched: Watched, clock: Clock) -> None:
    monitor, reader = watched
    for _ in monitor.steps(["batch"]):
        with monitor.phase("forward"):
            clock.pass_ms(1)
            with monitor.phase("communication"):
                clock.pass_ms(2)
            clock.pass_ms(4)
    values = reader.steps(-1)[0].values
    assert values["forward_s"] == pytest.approx(0.005)
    assert values["communication_s"] == pytest.approx(0.002)


def test_the_moment_can_be_read_inside_a_step(watched: Watched, clock: Clock) -> None:
    monitor, reader = watched
    for _ in monitor.steps(["batch"], start=9):
        clock.pass_ms(3)
        monitor.mark("optimizer")
        now = reader.now()
        assert (now.step, now.phase, now.running) == (9, "optimizer", True)
        assert (now.step_began, now.last_mark) == (1.0, 1.003)
        before = now.marks
        monitor.mark("optimizer")
        assert reader.now().marks == before + 1


def where(monitor: Monitor) -> tuple[int, str, bool, bool]:
    status = monitor.status()
    return status["step"], status["phase"], status["running"], status["in_step"]


def test_status_tells_where_the_loop_is_and_when_it_is_over(watched: Watched, clock: Clock) -> None:
    monitor, reader = watched
    assert where(monitor) == (-1, "other", False, False)
    monitor.begin(7)
    monitor.mark("optimizer")
    assert where(monitor) == (7, "optimizer", True, True)
    clock.pass_ms(3)
    monitor.end()
    assert where(monitor) == (7, "other", True, False), "between two steps: a hang there is one"
    assert (reader.now().phase, reader.now().last_mark) == ("other", 1.003)
    with monitor.phase("evaluation"):
        assert where(monitor) == (7, "evaluation", True, False)
        clock.pass_ms(50)
    assert where(monitor) == (7, "other", True, False), "it is not in the optimizer again"
    monitor.begin(8)
    monitor.mark("forward")
    monitor.stop()
    assert where(monitor) == (8, "other", False, False)
    with monitor.phase("checkpoint"):
        assert where(monitor) == (8, "checkpoint", False, False)
    (record,) = reader.steps(-1)
    assert record.values == pytest.approx({"step_s": 0.003, "optimizer_s": 0.003}), "an evaluation between two steps is in neither"


def test_status_without_a_ring_or_in_a_child_tells_of_no_step(watched: Watched) -> None:
    alone = Monitor(None)
    assert [batch for batch in alone.steps("ab") if alone.status()["in_step"]] == ["a", "b"]
    assert not alone.status()["running"]
    watched[0].begin(3)
    watched[0].disable()
    assert where(watched[0])[:3] == (-1, "other", False)


def test_a_step_that_is_left_is_not_recorded(watched: Watched) -> None:
    monitor, reader = watched
    for batch in monitor.steps(range(10)):
        if batch == 2:
            break
    assert [record.number for record in reader.steps(-1)] == [0, 1]
    assert not reader.now().running


def test_numbers_of_one_step_do_not_leak_into_the_next(watched: Watched) -> None:
    monitor, reader = watched
    for batch in monitor.steps(range(2)):
        if batch == 0:
            monitor.log(loss=1.0)
    assert "loss" not in reader.steps(0)[0].values


def test_steps_to_be_skipped_are_drawn_and_thrown_away(tmp_path: Path) -> None:
    monitor = Monitor(RingWriter.create(tmp_path / "ring"), skip=frozenset({1, 2}))
    assert [(batch, monitor.step) for batch in monitor.steps("abcd")] == [("a", 0), ("d", 3)]
    with RingReader.open(tmp_path / "ring") as reader:
        assert [record.number for record in reader.steps(-1)] == [0, 3]


def test_what_the_loader_raises_passes_through(watched: Watched) -> None:
    monitor, reader = watched

    def loader() -> Iterator[int]:
        yield 1
        raise ValueError("torn file")

    with pytest.raises(ValueError, match="torn file"):
        list(monitor.steps(loader()))
    assert not reader.now().running


@pytest.mark.parametrize(
    "act",
    [
        lambda monitor: monitor.mark("no such phase"),
        lambda monitor: monitor.mark(["unhashable"]),
        lambda monitor: monitor.phase("no such phase").__enter__(),
        lambda monitor: monitor.log(loss="three"),
        lambda monitor: monitor.log(loss=object()),
        lambda monitor: monitor.begin("one"),
    ],
)
def test_a_fault_of_the_probe_is_swallowed_and_counted(watched: Watched, act: Callable[[Monitor], None]) -> None:
    monitor, reader = watched
    act(monitor)
    assert reader.now().faults == 1


def test_without_a_launcher_nothing_is_written_and_the_loop_runs(tmp_path: Path) -> None:
    monitor = Monitor(None)
    with monitor.phase("forward"):
        monitor.mark("no such phase")
    seen = []
    for batch in monitor.steps("ab", start=3):
        monitor.log(loss=object())
        seen.append((batch, monitor.step))
    assert seen == [("a", 3), ("b", 4)]
    assert monitor.status()["faults"] == 0


def test_a_forked_child_writes_nothing_into_its_parents_ring(watched: Watched) -> None:
    monitor, reader = watched
    monitor.disable()  # what the fork hook calls in the child
    for _ in monitor.steps("ab"):
        monitor.mark("forward")
        monitor.log(loss=1.0)
    assert reader.now().marks == 0
    assert reader.steps(-1) == []


# --- numbers on a device: a fake at the border of torch -----------------------------------------------------------


class FakeEvent:
    done = False

    def __init__(self, *_: object) -> None: ...
    def record(self, *_: object) -> None: ...
    def query(self) -> bool:
        return FakeEvent.done


class FakeTensor(Scalar):
    """A scalar whose value must be copied without waiting."""

    def __float__(self) -> float:
        assert FakeEvent.done, "read before the device was there"
        return self.value


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeEvent]:
    def empty(_: object, *, dtype: str, pin_memory: bool) -> FakeTensor:
        assert pin_memory
        return FakeTensor(math.nan)

    accelerator = SimpleNamespace(current_stream=lambda _: None)
    torch = SimpleNamespace(Event=FakeEvent, accelerator=accelerator, empty=empty)
    monkeypatch.setitem(sys.modules, "torch", torch)
    FakeEvent.done = False
    return FakeEvent


def test_a_device_number_that_has_come_is_in_its_step(watched: Watched, gpu: type[FakeEvent]) -> None:
    monitor, reader = watched
    for _ in monitor.steps("a"):
        monitor.log(loss=FakeTensor(3.0))
        gpu.done = True
    assert reader.steps(-1)[0].values["loss"] == 3.0
    assert reader.now().faults == 0


def test_a_device_number_that_comes_late_is_still_in_its_own_step(watched: Watched, gpu: type[FakeEvent]) -> None:
    monitor, reader = watched
    for batch in monitor.steps("ab"):
        if batch == "a":
            monitor.log(loss=FakeTensor(3.0))
        else:
            assert reader.steps(-1) == []  # held back, never waited for
            gpu.done = True
    first, second = reader.steps(-1)
    assert (first.number, first.values["loss"]) == (0, 3.0)
    assert "loss" not in second.values


def test_a_device_number_that_does_not_come_is_dropped(watched: Watched, gpu: type[FakeEvent]) -> None:
    monitor, reader = watched
    for number in monitor.steps(range(3)):
        monitor.log(loss=FakeTensor(float(number)), tokens=1.0)
    assert [record.number for record in reader.steps(-1)] == [0, 1, 2]
    assert all("loss" not in record.values and record.values["tokens"] == 1.0 for record in reader.steps(-1))


def test_late_keeps_no_more_than_the_steps_that_are_open(gpu: type[FakeEvent]) -> None:
    late = DeviceScalars()
    for step in range(100):
        late.keep(step, 9, FakeTensor(1.0))
        late.take(step - 1)
    assert len(late._waiting) == 1


# --- the socket -------------------------------------------------------------------------------------------------------


@pytest.fixture
def socket_path(watched: Watched, tmp_path: Path) -> str:
    path = str(tmp_path / "p.sock")
    probe_socket.serve(path, watched[0], messages.TokenVerifier("secret"))
    return path


def test_status_needs_no_token(watched: Watched, socket_path: str) -> None:
    watched[0].begin(5)
    reply = messages.ask(socket_path, messages.encode("status"))
    assert (reply["ok"], reply["step"], reply["phase"]) == (True, 5, "data")
    assert Path(socket_path).stat().st_mode & 0o777 == 0o600


def test_a_drill_without_a_valid_token_is_refused(socket_path: str) -> None:
    reply = messages.ask(socket_path, messages.encode("drill", token="wrong", drill="hang"))
    assert not reply["ok"]
    assert "no valid token" in reply["error"]


NOBODY = """
import os, socket, sys
os.chdir(sys.argv[1])  # nobody may not walk down to it
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(5)
    connection.connect(sys.argv[2])
    connection.sendall(sys.stdin.buffer.read())
    sys.stdout.buffer.write(connection.recv(65536))
"""


def ask_as_another_user(monitor: Monitor, path: Path, message: bytes) -> dict[str, Any]:
    """What a probe answers to a process of a uid that is not its own. Only root can become another: else the reader is."""
    if os.getuid() != 0:
        probe_socket.serve(str(path), monitor, messages.TokenVerifier("secret"), uid_of=lambda _: os.getuid() + 1)
        return messages.ask(path, message)
    probe_socket.serve(str(path), monitor, messages.TokenVerifier("secret"))
    path.chmod(0o666)  # the mode would stop such a client before; this is about the second lock
    path.parent.chmod(0o711)
    words = [sys.executable, "-S", "-c", NOBODY, str(path.parent), path.name]
    said = subprocess.run(words, input=message, capture_output=True, timeout=20, check=True).stdout
    return messages.decode(said.splitlines()[0])


def test_a_drill_of_another_user_is_refused_even_with_a_good_token(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    offered = messages.encode("drill", token=messages.token("secret", 0), drill="x")
    reply = ask_as_another_user(watched[0], path, offered)
    assert not reply["ok"]
    assert "to the user of the training job only" in reply["error"]


def test_the_kernel_says_who_has_connected() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert probe_socket.uid_of(ours) == os.getuid()


def test_an_unknown_drill_is_refused_and_its_token_is_spent(socket_path: str) -> None:
    offered = messages.token("secret", 0)
    assert "unknown drill" in messages.ask(socket_path, messages.encode("drill", token=offered, drill="x"))["error"]
    assert "no valid token" in messages.ask(socket_path, messages.encode("drill", token=offered, drill="x"))["error"]


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"v":9,"kind":"status"}\n', b'{"v":1,"kind":"dance"}\n'])
def test_a_bad_request_is_refused_and_the_next_is_served(socket_path: str, line: bytes) -> None:
    assert not messages.ask(socket_path, line)["ok"]
    assert messages.ask(socket_path, messages.encode("status"))["ok"]


def test_the_exception_drill_raises_in_the_main_thread(socket_path: str) -> None:
    token = messages.token("secret", 0)
    with pytest.raises(RuntimeError, match="illegal memory access") as raised:  # noqa: PT012 - it comes from outside
        messages.ask(socket_path, messages.encode("drill", token=token, drill="exception"))
        for _ in itertools.count():
            threading.Event().wait(0.001)
    assert type(raised.value).__name__ == "AcceleratorError"


def test_the_slow_drill_pauses_the_main_thread_and_ends_when_nobody_asks_for_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"SLOW_S": 0.2, "PAUSE_S": 0.001, "RUN_S": 0.001}.items():
        monkeypatch.setattr(fault_drills, name, seconds)
    slow_down, paused = type(fault_drills.slow_down)(), list[threading.Thread]()

    class Paused(threading.Event):
        def set(self) -> None:
            paused.append(threading.current_thread())
            super().set()

    slow_down._paused = Paused()
    slow_down()
    while slow_down._thread.is_alive():
        threading.Event().wait(0.001)
    assert len(paused) > 3
    assert set(paused) == {threading.main_thread()}


class StruckClock(Clock):
    """The drill's exception arrives while the loop is inside the probe."""

    struck = False

    def __call__(self) -> int:
        if self.struck:
            raise fault_drills.AcceleratorError
        return super().__call__()


@pytest.mark.parametrize(
    "act",
    [
        lambda monitor: monitor.begin(0),
        lambda monitor: monitor.mark("forward"),
        lambda monitor: monitor.end(),
        lambda monitor: list(monitor.steps([1, 2])),
    ],
)
def test_the_exception_drill_is_not_swallowed_by_the_probe(tmp_path: Path, act: Callable[[Monitor], None]) -> None:
    clock = StruckClock()
    monitor = Monitor(RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0), clock_ns=clock)
    clock.struck = True
    with pytest.raises(fault_drills.AcceleratorError):
        act(monitor)


# --- what a trainer's environment needs ---------------------------------------------------------------------------------


def test_probe_and_zygote_need_the_standard_library_alone() -> None:
    text = (
        "import sys\n"
        "import eagle_eye\n"
        "monitor = eagle_eye.monitor()\n"
        "import eagle_eye.training.zygote, eagle_eye.training.live_flight_recorder, eagle_eye.training.checkpoint\n"
        "strange = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(strange - {'eagle_eye', '__main__'}))\n"
    )
    root = Path(__file__).parents[4]
    found = subprocess.run(
        [sys.executable, "-S", "-c", text], cwd=root, capture_output=True, text=True, timeout=20, check=True
    )
    assert found.stdout.strip() == "[]"


def test_the_socket_answers_again_once_there_are_descriptors(watched: Watched, tmp_path: Path) -> None:
    """An accept that failed, with no descriptor left, ended the thread for the life of the process."""
    path = str(tmp_path / "p.sock")

    class Listener(socket.socket):
        failures = 2

        def accept(self) -> Any:
            if Listener.failures:
                Listener.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_socket.socket, "socket", Listener)
        probe_socket.serve(path, watched[0], messages.TokenVerifier("secret"))
    assert messages.ask(path, messages.encode("status"))["ok"]
    assert Listener.failures == 0


def test_a_socket_that_was_closed_ends_its_thread(watched: Watched) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.close()
    probe_socket._accept(listener, watched[0], messages.TokenVerifier("secret"), probe_socket.uid_of)
