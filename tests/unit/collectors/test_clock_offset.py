"""The offset of the clock, by a stand-in for chronyc and by the kernel of this machine."""

import math
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.node.clock_offset import NOT_KNOWN, ClockOffset, ClockWatch, kernel_offset, offset_of
from eagle_eye.clock import FakeClock

LINE = "A29FC801,162.159.200.1,4,1763990000.5,{offset},0.00001,0.0002,-12.3,0.01,0.1,0.02,0.001,64.2,{leap}"


def chronyc(folder: Path, body: str) -> Path:
    """A script in its place, which notes that it was called."""
    script = folder / "chronyc"
    script.write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/calls\n{body}\n")
    script.chmod(0o755)
    return script


def same(one: ClockOffset, other: ClockOffset) -> bool:
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True))


def answered(watch: ClockWatch, clock: FakeClock) -> ClockOffset:
    """Looks until the script has ended; the clock stands meanwhile."""
    pause = Event()
    for _ in range(2000):
        found = watch.look()
        if watch._chronyc._question is None:
            return found
        pause.wait(0.01)
    raise AssertionError("it never ended")


def test_chronyd_tells_the_offset_and_is_asked_once_a_minute(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = ClockWatch(str(chronyc(tmp_path, f"echo '{LINE.format(offset='0.250000000', leap='Normal')}'")), clock=clock)
    assert answered(watch, clock) == ClockOffset(-0.25, 1.0)
    clock.advance(59.0)
    watch.look()
    assert (tmp_path / "calls").read_text() == "-c tracking\n"
    clock.advance(1.0)
    answered(watch, clock)
    assert (tmp_path / "calls").read_text() == "-c tracking\n" * 2


def test_a_clock_that_chronyd_cannot_set_is_told_as_not_synchronised(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = ClockWatch(str(chronyc(tmp_path, f"echo '{LINE.format(offset='0.000000000', leap='Not synchronised')}'")), clock=clock)
    found = answered(watch, clock)
    assert math.isnan(found.offset_s)
    assert found.synchronised == 0.0


@pytest.mark.parametrize("body", ["echo '506 Cannot talk to daemon'; exit 1", "true", "head -c 3000 /dev/urandom"])
def test_without_chronyd_the_kernel_tells_what_it_knows(tmp_path: Path, body: str) -> None:
    clock = FakeClock()
    assert same(answered(ClockWatch(str(chronyc(tmp_path, body)), clock=clock), clock), kernel_offset())


def test_without_chronyc_it_is_tried_once_alone(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = ClockWatch(str(tmp_path / "none"), clock=clock)
    for _ in range(3):
        assert same(watch.look(), kernel_offset())
        clock.advance(120.0)


def test_fault_a_chronyc_that_hangs_is_ended_and_holds_nobody(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = ClockWatch(str(chronyc(tmp_path, "exec sleep 600")), clock=clock)
    watch.look()
    question = watch._chronyc._question
    assert question is not None
    assert same(watch.look(), kernel_offset()), "nobody waits for it"
    clock.advance(5.0)
    watch.look()
    assert question.returncode == -9


def test_an_old_answer_does_not_outlive_chronyd(tmp_path: Path) -> None:
    clock = FakeClock()
    watch = ClockWatch(str(chronyc(tmp_path, f"echo '{LINE.format(offset='1.0', leap='Normal')}'")), clock=clock)
    assert answered(watch, clock).offset_s == -1.0
    chronyc(tmp_path, "exit 1")
    clock.advance(60.0)
    watch.look()
    assert same(answered(watch, clock), kernel_offset())


def test_the_kernel_of_this_machine_answers() -> None:
    found = kernel_offset()
    assert found.synchronised in (0.0, 1.0)
    assert math.isnan(found.offset_s) if not found.synchronised else abs(found.offset_s) < 1.0


@given(st.text())
def test_whatever_chronyc_prints_nothing_fails(text: str) -> None:
    assert same(offset_of(text), NOT_KNOWN) or text.count(",") == 13
    offset_of(LINE.format(offset=text, leap=text))
