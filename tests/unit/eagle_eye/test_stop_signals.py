"""A process with an event loop that is asked to end cleans up, however often and whenever it is asked."""

import signal
import subprocess
import sys

import pytest

from eagle_eye.stop_signals import handles

PROCESS = """
import asyncio, sys
from eagle_eye.stop_signals import stop_on_signals

async def run():
    stop = asyncio.Event()
    stop_on_signals(stop.set)
    print("ready", flush=True)
    await stop.wait()

asyncio.run(run())
print("loop over", flush=True)
sys.stdin.read()
print("cleaned up", flush=True)
"""


def start(before: str = "") -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", before + PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_is_asked_again_after_the_loop_cleans_up_all_the_same(number: signal.Signals) -> None:
    with start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "loop over\n"
        process.send_signal(number)
        assert process.communicate("", timeout=60)[0] == "cleaned up\n"
    assert process.returncode == 0


def test_twin_a_terminal_that_hangs_up_ends_nothing_that_was_started_with_nohup() -> None:
    with start("import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "loop over\n"
        process.send_signal(signal.SIGHUP)
        assert process.communicate("", timeout=60)[0] == "cleaned up\n"
    assert process.returncode == 0


def test_who_hangs_after_its_loop_can_be_ended_all_the_same() -> None:
    with start("from eagle_eye import stop_signals; stop_signals.CLEAN_UP_S = 0.0\n") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "loop over\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


CATCHES = """
import asyncio, signal, sys
from eagle_eye.stop_signals import on_user_signals

async def run():
    told = asyncio.Event()
    on_user_signals(lambda number: (print(number.name, flush=True), told.set()))
    print("ready", flush=True)
    await told.wait()

asyncio.run(run())
"""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_of_the_user_is_handed_on_and_ends_nobody(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", CATCHES], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert handles(process.pid, number)
        assert not handles(process.pid, signal.SIGWINCH)
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == f"{number.name}\n"
    assert process.returncode == 0
    assert not handles(process.pid, number), "it is gone"
