"""The offset of the clock, by a stand-in for chronyc and by the kernel of this machine."""

import math
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.node import clock_offset
from collectors.node.clock_offset import NOT_KNOWN, ClockOffset, ClockWatch, kernel_offset, offset_of, ptp_offset_of
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


# --- PTP

STATUS = """sending: GET TIME_STATUS_NP
\t507c6f.fffe.0a0b0c-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP
\t\tmaster_offset              {offset}
\t\tingress_time               1449504540441523534
\t\tcumulativeScaledRateOffset +0.000000000
\t\tgmPresent                  {led}
\t\tgmIdentity                 507c6f.fffe.0a0b0d
"""


class PtpNode:
    """A node without chronyd whose kernel knows of nobody that sets the clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, FakeClock()
        (folder / "proc" / "self").mkdir(parents=True)
        self.watch = ClockWatch(str(folder / "no chronyc"), ptp_program=str(folder / "pmc"), proc=folder / "proc", clock=self.clock)

    def run(self, pid: int, *command: str) -> None:
        (self.folder / "proc" / str(pid)).mkdir()
        (self.folder / "proc" / str(pid) / "comm").write_text(f"{command[0]}\n")
        (self.folder / "proc" / str(pid) / "cmdline").write_text("\0".join((*command, "")))

    def answer(self, body: str) -> None:
        """What pmc does; it notes that it was called."""
        script = self.folder / "pmc"
        script.write_text(f"#!/bin/sh\necho \"$@\" >> {self.folder}/calls\n{body}\n")
        script.chmod(0o755)

    def status(self, offset: int, led: str) -> None:
        self.answer(f"cat <<'END'\n{STATUS.format(offset=offset, led=led)}END")

    @property
    def calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def look(self) -> ClockOffset:
        """As it is known once pmc, if it was asked, has answered; the clock stands meanwhile."""
        pause = Event()
        for _ in range(2000):
            found = self.watch.look()
            if not self.watch._ptp._pmc.waits:
                return found
            pause.wait(0.01)
        raise AssertionError("it never ended")


@pytest.fixture
def ptp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PtpNode:
    monkeypatch.setattr(clock_offset, "kernel_offset", lambda: ClockOffset(math.nan, 0.0))
    return PtpNode(tmp_path)


@pytest.mark.parametrize("daemons", [[("ptp4l", "-i", "eth0"), ("phc2sys", "-a", "-r")], [("ptp4l", "-S", "-i", "eth0")]])
def test_a_clock_that_follows_ptp_is_synchronised_and_ptp4l_is_asked_once_a_minute(ptp: PtpNode, daemons: list[tuple[str, ...]]) -> None:
    for pid, command in enumerate(daemons, 40):
        ptp.run(pid, *command)
    ptp.status(-250, "true")
    ptp.watch.look()
    assert ptp.look() == ClockOffset(-2.5e-7, 1.0)
    assert ptp.look() == ClockOffset(-2.5e-7, 1.0)
    assert ptp.calls == ["-u -b 0 GET TIME_STATUS_NP"]
    ptp.status(0, "false")
    ptp.clock.advance(60.0)
    assert same(ptp.look(), ClockOffset(math.nan, 0.0)), "nobody leads it"


@pytest.mark.parametrize("body", ["exit 1", "true", "head -c 3000 /dev/urandom", ""])
def test_where_ptp4l_does_not_answer_nothing_is_known_of_the_clock(ptp: PtpNode, body: str) -> None:
    ptp.run(40, "ptp4l", "-i", "eth0")
    ptp.run(41, "phc2sys", "-a")
    if body:
        ptp.answer(body)
    assert [same(ptp.look(), NOT_KNOWN) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("name", ["ptp4l", "phc2sys"])
def test_one_of_the_daemons_alone_says_nothing_and_no_program_is_started(ptp: PtpNode, name: str) -> None:
    ptp.run(40, name)
    ptp.status(0, "true")
    assert same(ptp.look(), NOT_KNOWN)
    assert ptp.calls == []


def test_twin_without_ptp_a_clock_that_nobody_sets_is_not_synchronised_and_no_program_is_started(ptp: PtpNode) -> None:
    ptp.run(40, "ptp4linux")
    ptp.status(0, "true")
    assert same(ptp.look(), ClockOffset(math.nan, 0.0))
    assert ptp.calls == []


def test_ptp4l_answers_into_the_run_directory_where_there_is_one(ptp: PtpNode) -> None:
    """What runs in a sandbox may not write where pmc would by itself."""
    ptp.run(10, "ptp4l", "-S")
    ptp.status(-250, "true")
    ptp.look()
    assert ptp.calls == ["-u -b 0 GET TIME_STATUS_NP"]
    ptp.watch = ClockWatch(str(ptp.folder / "no chronyc"), ptp_program=str(ptp.folder / "pmc"), proc=ptp.folder / "proc", socket_folder=ptp.folder, clock=ptp.clock)
    ptp.look()
    assert ptp.calls[1:] == [f"-i {ptp.folder}/pmc.sock -u -b 0 GET TIME_STATUS_NP"]
    missing = ClockWatch(str(ptp.folder / "no chronyc"), ptp_program=str(ptp.folder / "pmc"), proc=ptp.folder / "proc", socket_folder=ptp.folder / "none", clock=ptp.clock)
    ptp.watch = missing
    ptp.look()
    assert ptp.calls[2:] == ["-u -b 0 GET TIME_STATUS_NP"]


def test_a_daemon_that_has_ended_is_not_believed_any_more(ptp: PtpNode) -> None:
    ptp.run(40, "ptp4l", "-S")
    ptp.status(0, "true")
    ptp.watch.look()
    assert ptp.look().synchronised == 1.0
    (ptp.folder / "proc" / "40" / "comm").unlink()
    ptp.clock.advance(60.0)
    assert same(ptp.look(), ClockOffset(math.nan, 0.0))


@given(st.text())
def test_whatever_pmc_prints_nothing_fails(text: str) -> None:
    assert same(ptp_offset_of(text), NOT_KNOWN) or "master_offset" in text
