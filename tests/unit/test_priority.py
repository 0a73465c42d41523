"""A worker that makes itself ready stands back, and comes back to where it was."""

import json
import os
import subprocess
import sys

import pytest

from eagle_eye.training import priority

SCRIPT = """
import ctypes, json, os, sys, threading
from pathlib import Path
from eagle_eye.training import priority

if sys.argv[1] == "nobody":
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: its files in /proc are its own

def weights():
    group = Path("/proc/self/autogroup")
    return [os.getpriority(os.PRIO_PROCESS, 0), int(group.read_text().split()[-1]) if group.exists() else None]

said = [weights()]
for act in (priority.step_back, priority.step_forward, priority.step_forward):
    act()
    said.append(weights())
os.environ[priority.STANDS_BACK] = "0"
priority.step_back()
assert weights() == said[0]
os.environ[priority.STANDS_BACK] = "0.01"
priority.step_back()
while weights() != said[0]:
    threading.Event().wait(0.01)
print(json.dumps(said))
"""


@pytest.mark.parametrize("user", ["this one", "nobody"])
def test_who_stands_back_comes_back(user: str) -> None:
    user = user if os.getuid() == 0 else "this one"
    found = subprocess.run([sys.executable, "-c", SCRIPT, user], capture_output=True, text=True, start_new_session=True, check=False, timeout=60)
    assert found.returncode == 0, found.stderr
    before, back, after, again = json.loads(found.stdout)
    assert before == after == again
    assert back[1] in (None, priority.NICE)
    assert back[0] == (before[0] if user == "nobody" else priority.NICE) or os.getuid() != 0
