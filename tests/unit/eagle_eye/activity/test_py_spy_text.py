"""What `py-spy dump` prints for a person, read back."""

import pytest

from eagle_eye.activity.py_spy_text import parse_text, place_key
from eagle_eye.activity.python_stacks import StackFrame

DUMP = """Process {pid}: python train.py --lr 3e-4
Python v3.11.7 (/usr/bin/python3.11)

Thread {loader} (active+gil): "Thread-{number} (loader)"
    load (/home/ada/data (old).py:12)
    Thread.run (/usr/lib/python3.11/threading.py:982)
Thread {pid} (idle): "MainThread"
    step (/home/ada/train.py:{line})
    <module> (/home/ada/train.py:88)
Thread 0x7F3A (idle)
    <frozen> (<frozen importlib._bootstrap>:241)
    native (libtorch_cpu.so)
"""


def dump(pid: int = 4711, loader: int = 4712, number: int = 1, line: int = 33) -> str:
    return DUMP.format(pid=pid, loader=loader, number=number, line=line)


def test_the_threads_with_their_frames_the_main_thread_first() -> None:
    main, loader, native = parse_text(dump())
    assert main.frames == (StackFrame("/home/ada/train.py", 33, "step"), StackFrame("/home/ada/train.py", 88, "<module>"))
    assert (main.thread, main.name, main.holds_interpreter) == (4711, "MainThread", False)
    assert (loader.name, loader.holds_interpreter, loader.frames[0]) == ("Thread-1 (loader)", True, StackFrame("/home/ada/data (old).py", 12, "load"))
    assert [frame.file for frame in native.frames] == ["<frozen importlib._bootstrap>", "libtorch_cpu.so"]


def test_fault_two_processes_at_the_same_places_are_equal_and_twin_one_in_another_line_is_not() -> None:
    assert place_key(dump()) == place_key(dump(pid=9000, loader=8000, number=7))
    assert place_key(dump()) != place_key(dump(line=34))


@pytest.mark.parametrize("text", ["", "no stack", "(py-spy: it is gone)\nstatus: State: D", "    step (train.py:33)"])
def test_what_is_no_dump_is_only_equal_to_itself(text: str) -> None:
    assert parse_text(text) == ()
    assert place_key(text) == text


def test_a_text_that_was_cut_anywhere_is_read_up_to_there() -> None:
    whole = dump()
    for end in range(len(whole)):
        place_key(whole[:end])
    assert parse_text(whole[: whole.index("(/home/ada/train.py:88")])[0].frames == (StackFrame("/home/ada/train.py", 33, "step"),)
