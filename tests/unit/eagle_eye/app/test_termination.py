"""A process that is asked to end ends, however often and whenever it is asked."""

import signal
import subprocess
import sys

PROCESS = """
import sys
from eagle_eye.app.termination import termination_event
over = termination_event()
print("ready", flush=True)
while not over.is_set():
    over.wait(1e-6)
over.wait()
print("over", flush=True)
sys.stdin.read()
"""


def test_signals_that_interrupt_one_anothers_handlers_end_it_all_the_same() -> None:
    """Each comes within microseconds of the last, most of them while the lock of the event is held."""
    with subprocess.Popen([sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGTERM, signal.SIGINT) * 2000:
            process.send_signal(number)
        try:
            told, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert told == "over\n"
    assert process.returncode == 0
