"""The zygote with real processes: exit codes, signals, and nothing left behind."""

import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import live_flight_recorder, messages, zygote
from eagle_eye.training.ring_buffer import RingReader

PATIENCE_S = 120.0


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            if found := condition():
                return found
        select.select([], [], [], 0.005)
    raise AssertionError(f"waited in vain for {what}")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit(-1)", 255),
        ("import sys; sys.exit('words')", 1),
        ("1 / 0", 1),
        ("this is no python", 1),
        ("import no_such_module", 1),
        ("import os; os._exit(9)", 9),
    ],
)
def test_exit_codes_are_those_of_the_interpreter(launcher: Any, text: str, code: int) -> None:
    assert os.waitstatus_to_exitcode(launcher.python(text)) == code
    plain = subprocess.run([sys.executable, "script.py"], cwd=launcher.home, capture_output=True, text=True)
    assert plain.returncode == code
    assert launcher.words().splitlines()[-1:] == plain.stderr.splitlines()[-1:]


def test_a_script_that_does_not_exist_ends_as_with_python(launcher: Any) -> None:
    assert os.waitstatus_to_exitcode(launcher.run(sys.executable, "missing.py")) == 2
    assert "can't open file" in launcher.words()
    assert "No such file or directory" in launcher.words()


def test_a_traceback_shows_the_script_alone(launcher: Any) -> None:
    launcher.python("def f():\n    raise KeyError('x')\nf()")
    plain = subprocess.run([sys.executable, "script.py"], cwd=launcher.home, capture_output=True, text=True)
    assert launcher.words() == plain.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_told_as_such(launcher: Any, number: signal.Signals) -> None:
    status = launcher.python(f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)")
    assert os.WTERMSIG(status) == number


SAYS_WHO_IT_IS = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "main": sys.modules["__main__"].__dict__ is globals(), "extra": os.environ.get("EXTRA"),
    "spec": None if __spec__ is None else __spec__.name, "package": __package__, "stdin": sys.stdin.read(),
}))
"""


@pytest.mark.parametrize("how", ["file", "module"])
def test_a_script_sees_what_it_would_see_under_python(launcher: Any, how: str) -> None:
    (launcher.home / "pack").mkdir()
    (launcher.home / "pack" / "script.py").write_text(SAYS_WHO_IT_IS)
    words = ["pack/script.py"] if how == "file" else ["-m", "pack.script"]
    command = [sys.executable, "-u", *words, "a", "--b"]
    assert launcher.run(*command, EXTRA="1") == 0
    plain = subprocess.run(
        command, cwd=launcher.home, capture_output=True, text=True, env={**os.environ, "EXTRA": "1"}, stdin=subprocess.DEVNULL
    )
    assert launcher.words() == plain.stdout


def test_multiprocessing_finds_the_script_again(launcher: Any) -> None:
    status = launcher.python(
        "import multiprocessing, pickle\n"
        "class Thing:\n    pass\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    assert type(pickle.loads(pickle.dumps(Thing()))) is Thing\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [21]))\n"
    )
    assert (status, launcher.words()) == (0, "[42]\n")


def test_exit_handlers_and_threads_are_waited_for(launcher: Any) -> None:
    launcher.python(
        "import atexit, threading\n"
        "atexit.register(print, 'handler')\n"
        "threading.Timer(0.05, print, ['thread']).start()\n"
    )
    assert launcher.words() == "thread\nhandler\n"


LEAVES = """
import os, sys, threading, time
from eagle_eye.training.ring_buffer import RingReader
ring = os.environ.get("RING")
class Connection:
    def __del__(self):
        end = RingReader.open(ring).script_end()
        print(end and end.code, flush=True)
def main(how):
    peer = Connection()
    if how == "thread":
        threading.Thread(target=time.sleep, args=(0.2,)).start()
    if how == "missed":
        try:
            raise OSError("connection reset by peer")
        except OSError:
            sys.exit(1)
    sys.exit(int(how) if how.isdigit() else 0)
main(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("how", "noted"), [("0", "0"), ("7", "7"), ("missed", "None"), ("thread", "None")], ids=["exit 0", "exit 7", "of an exception that it caught", "a thread goes on"]
)
def test_that_a_script_is_over_is_in_the_ring_before_its_connections_are_closed(launcher: Any, how: str, noted: str) -> None:
    ring = str(launcher.home / "ring")
    launcher.python(LEAVES, how, EAGLE_EYE_RING=ring, RING=ring)
    assert launcher.words() == f"{noted}\n"


def test_workers_do_not_draw_the_same_random_numbers(launcher: Any) -> None:
    for slot in ("0", "1"):
        launcher.python("import random; print(random.random())", slot=slot)
    assert launcher.words("0") != launcher.words("1")


@pytest.mark.parametrize("command", [(sys.executable, "script.py"), ("cat", "/proc/self/oom_score_adj")], ids=["forked", "executed"])
def test_where_memory_is_short_the_kernel_ends_a_worker_before_the_zygote(launcher: Any, command: tuple[str, ...]) -> None:
    (launcher.home / "script.py").write_text("print(open('/proc/self/oom_score_adj').read(), end='')")
    assert launcher.run(*command) == 0
    mine = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(launcher.words()) == min(1000, mine + 100)


def test_a_command_that_is_not_python_is_executed(launcher: Any) -> None:
    status = launcher.run("sh", "-c", "echo $0 $1; exit 3", "one", "two words")
    assert (os.waitstatus_to_exitcode(status), launcher.words()) == (3, "one two words\n")
    assert os.waitstatus_to_exitcode(launcher.run("no-such-program")) == zygote.NOT_FOUND
    assert "cannot run 'no-such-program'" in launcher.words()


def test_the_exit_of_each_is_told_at_once_and_by_name(launcher: Any) -> None:
    pids = {slot: launcher.fork("sleep", "infinity", slot=slot) for slot in ("a", "b", "c")}
    before = time.monotonic()
    launcher.tell("kill", pid=pids["b"], signal=int(signal.SIGTERM))
    told = launcher.hear("exited")
    assert told["slot"] == "b", told
    assert before <= told["ended_s"] <= time.monotonic(), "when, for a launcher that reads it later"
    assert not gone(pids["a"])
    launcher.tell("kill", pid=os.getpid(), signal=int(signal.SIGKILL))  # not its child: we live on
    launcher.tell("kill", pid=pids["a"])
    assert launcher.hear("exited")["slot"] == "a"


def test_a_worker_that_is_asked_to_end_as_it_is_born_ends(home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The zygote ignores the signal, and so did the child, until it had come so far as to undo that."""
    (home / "slow_birth.py").write_text("import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(0.3))\n")
    monkeypatch.setenv("PYTHONPATH", str(home))
    launcher = request.getfixturevalue("launcher")
    launcher.tell("import", modules=["slow_birth"])
    assert launcher.hear("ready")["modules"] == ["slow_birth"]
    pid = launcher.fork("sleep", "infinity")
    launcher.tell("kill", pid=pid, signal=int(signal.SIGTERM))
    assert os.WTERMSIG(launcher.hear("exited", pid=pid)["status"]) == signal.SIGTERM


def test_a_log_that_cannot_be_written_costs_what_is_said_and_no_worker(launcher: Any) -> None:
    """Each restart failed at it until the job's heal budget was spent."""

    def run_with(log: Path) -> int:
        launcher.tell("fork", slot="0", argv=[sys.executable, "-c", "print('said')"], cwd=str(launcher.home), log=str(log), env=dict(os.environ))
        return int(launcher.hear("exited", pid=int(launcher.hear("forked", slot="0")["pid"]))["status"])

    assert run_with(launcher.home / "tidied" / "up" / "0.log") == 0
    assert (launcher.home / "tidied" / "up" / "0.log").read_text() == "said\n"
    (launcher.home / "in-the-way").touch()
    assert run_with(launcher.home / "in-the-way" / "0.log") == 0
    (launcher.home / "folder.log").mkdir()
    assert run_with(launcher.home / "folder.log") == 0


SAYS_MORE_THAN_THERE_IS_ROOM = """
import resource, sys
print("before", flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
for _ in range(8):
    print("lost" * 20)
    print("lost" * 20, file=sys.stderr, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("after")
"""


def test_a_log_that_is_full_for_a_while_ends_no_training(launcher: Any) -> None:
    """It was an error of whoever printed, again after each restart."""
    assert launcher.python(SAYS_MORE_THAN_THERE_IS_ROOM) == 0
    said = launcher.words()
    assert said.startswith("before\nlost")
    assert said.endswith("bytes that this worker said here are lost: File too large\nafter\n")
    launcher.tell("fork", slot="0", argv=[sys.executable, "-c", "print('said'); print('said')"], cwd=str(launcher.home), log="/dev/full", env=dict(os.environ))
    assert launcher.hear("exited", pid=int(launcher.hear("forked", slot="0")["pid"]))["status"] == 0


@pytest.mark.parametrize("output", ["/dev/full", ""], ids=["full", "closed"])
def test_an_output_of_the_launcher_that_takes_nothing_keeps_no_worker_from_being_born(home: Path, output: str) -> None:
    """What a module prints at its import stays in the buffer."""
    (home / "greets.py").write_text("import sys\nprint('hello')\nprint('hello', file=sys.stderr) if sys.stderr else None")
    ours, theirs = socket.socketpair()
    to = f">{output} 2>{output}" if output else ">&- 2>&-"
    command = shlex.join(zygote.command(sys.executable, theirs.fileno()))
    process = subprocess.Popen(f"exec {command} {to}", shell=True, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": str(home), "PYTHONUNBUFFERED": ""})
    theirs.close()
    with ours, ours.makefile("r") as answers:
        for words in (messages.encode("import", modules=["greets"]), messages.encode("fork", slot="0", argv=["true"], cwd=str(home), log=str(home / "0.log"), env={})):
            ours.sendall(words)
        for kind in ("ready", "forked", "exited"):
            assert messages.decode(answers.readline())["kind"] == kind
    assert process.wait(PATIENCE_S) == 0


def test_what_a_dead_worker_started_ends_with_it(launcher: Any) -> None:
    pid = launcher.fork("sh", "-c", "sleep 60 & echo $!; wait")
    child = int(until(lambda: launcher.words().strip(), "the child's pid"))
    os.kill(pid, signal.SIGKILL)
    launcher.hear("exited", pid=pid)
    until(lambda: gone(child), "the end of the worker's child")


def test_when_the_launcher_goes_nothing_is_left(launcher: Any) -> None:
    hidden = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    print(os.getpid())\ntime.sleep(60)"
    (launcher.home / "script.py").write_text(hidden)
    pid = launcher.fork(sys.executable, "script.py")
    escaped = int(until(lambda: launcher.words().strip(), "the pid of the process that left the group"))
    launcher.socket.close()
    assert launcher.process.wait(PATIENCE_S) == 0
    assert gone(pid)
    assert gone(escaped)


def test_when_the_zygote_is_killed_its_workers_die(launcher: Any) -> None:
    pid = launcher.fork("sleep", "60")
    launcher.process.kill()
    until(lambda: gone(pid), "the death of the worker")


HANDLES = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
signal.signal(signal.SIGUSR1, lambda *_: os._exit(8))
open("ready", "w").close()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_to_a_whole_process_group_leaves_workers_to_the_launcher(launcher: Any, number: signal.Signals) -> None:
    """With the zygote all workers were killed at once, whatever time they were to have."""
    pid = launcher.fork(sys.executable, "-c", HANDLES)
    until((launcher.home / "ready").exists, "the worker")
    launcher.process.send_signal(number)
    assert launcher.run(sys.executable, "-c", "raise SystemExit(3)", slot="1") == 3 << 8, "the zygote goes on"
    launcher.tell("kill", pid=pid, signal=int(signal.SIGTERM), group=True)
    assert launcher.hear("exited", pid=pid)["status"] == 7 << 8, "what it handles itself is its own"


def test_twin_a_worker_is_ended_by_what_it_does_not_handle(launcher: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        pid = launcher.fork(sys.executable, "-c", "import signal; open('there', 'w').close(); signal.pause()")
        until((launcher.home / "there").exists, "the worker")
        launcher.tell("kill", pid=pid, signal=int(number), group=True)
        assert launcher.hear("exited", pid=pid)["status"] == int(number)
        (launcher.home / "there").unlink()


def test_eagle_eye_need_not_be_installed_where_the_script_runs(home: Path) -> None:
    """The interpreter gets this package alone: nothing else of our environment, no top-level `ring` or `probe`."""
    text = (
        "import eagle_eye, sys\n"
        "import importlib.util\n"
        "print([importlib.util.find_spec(name) is not None for name in ('eagle_eye.training.ring_buffer', 'ring', 'torch')])\n"
    )
    (home / "script.py").write_text(text)
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    command = zygote.command(sys.executable, theirs.fileno())
    process = subprocess.Popen([command[0], "-S", *command[1:]], pass_fds=[theirs.fileno()], cwd="/")
    theirs.close()
    argv = [sys.executable, "script.py"]
    ours.sendall(messages.encode("fork", slot="0", argv=argv, env={}, cwd=str(home), log=str(home / "log")))
    with ours, ours.makefile("rb") as lines:
        assert [messages.decode(next(lines))["kind"] for _ in range(2)] == ["forked", "exited"]
    process.wait(PATIENCE_S)
    assert (home / "log").read_text() == "[True, False, False]\n"


# --- with torch -----------------------------------------------------------------------------------------------------------


def test_torch_leaves_the_zygote_fit_to_fork(torch_launcher: Any) -> None:
    assert torch_launcher.ready["missing"] == {}
    assert torch_launcher.ready["unsafe"] == ""


TRAINS = """
import torch, eagle_eye
monitor = eagle_eye.monitor()
weight = torch.nn.Parameter(torch.ones(64, 64))
for _ in monitor.steps(iter(int, 1)):
    with monitor.phase("forward"):
        loss = (torch.ones(4, 64) @ weight).square().mean()
    loss.backward()
    weight.grad = None
    monitor.log(loss=loss)
"""


class Worker:
    """A training script under a torch zygote, with everything the probe serves."""

    def __init__(self, launcher: Any, slot: str) -> None:
        self.launcher = launcher
        self.slot = slot
        script = launcher.home / f"{slot}.py"
        script.write_text(TRAINS)
        ring = launcher.home / f"{slot}.ring"
        self.probe = str(launcher.home / f"{slot}.sock")
        self.pid = launcher.fork(
            sys.executable,
            str(script),
            slot=slot,
            EAGLE_EYE_RING=str(ring),
            EAGLE_EYE_PROBE_SOCKET=self.probe,
            EAGLE_EYE_TOKEN="secret",
            EAGLE_EYE_WORKER=f"run/a/{slot}",
        )
        until(ring.exists, "the ring")
        self.ring = RingReader.open(ring)
        until(lambda: self.ring.now().completed > 3, "the first steps")

    def drill(self, name: str) -> None:
        reply = messages.ask(self.probe, messages.encode("drill", token=messages.token("secret", 0), drill=name))
        assert reply["ok"], reply

    def stands_still(self) -> bool:
        before = self.ring.now().marks
        select.select([], [], [], 0.1)
        return self.ring.now().marks == before

    def end(self) -> int:
        self.launcher.tell("kill", pid=self.pid)
        return int(self.launcher.hear("exited", pid=self.pid)["status"])


def test_a_hang_leaves_the_probe_awake(torch_launcher: Any) -> None:
    worker = Worker(torch_launcher, "hang")
    worker.drill("hang")
    until(worker.stands_still, "the hang")
    assert messages.ask(worker.probe, messages.encode("status"))["running"]
    worker.end()


def test_a_hang_that_holds_the_gil_leaves_the_flight_recorder_awake(torch_launcher: Any) -> None:
    worker = Worker(torch_launcher, "gil")
    worker.drill("hang-gil")
    until(worker.stands_still, "the hang")
    with pytest.raises(OSError, match="timed out"):
        messages.ask(worker.probe, messages.encode("status"), timeout=0.3)
    trace = live_flight_recorder.dump(live_flight_recorder.path_beside(worker.probe))
    assert trace is not None
    assert "version" in trace
    worker.end()


def test_an_exception_ends_the_worker_and_is_in_the_ring(torch_launcher: Any) -> None:
    worker = Worker(torch_launcher, "raise")
    worker.drill("exception")
    assert os.waitstatus_to_exitcode(torch_launcher.hear("exited", pid=worker.pid)["status"]) == 1
    last = worker.ring.error()
    assert last is not None
    assert last["type"] == "AcceleratorError"
    assert last["message"].startswith("CUDA error: an illegal memory access")
    assert not worker.ring.alive()


def test_a_nan_reaches_the_loss(torch_launcher: Any) -> None:
    worker = Worker(torch_launcher, "nan")
    worker.drill("nan")
    until(lambda: worker.ring.steps(-1)[-1].values["loss"] != worker.ring.steps(-1)[-1].values["loss"], "a NaN")
    worker.end()


def test_the_store_serves_ranks_and_ends_when_told(torch_launcher: Any) -> None:
    torch_launcher.tell("store", host="127.0.0.1")
    store = torch_launcher.hear("stored")
    script = torch_launcher.home / "rank.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1); dist.all_reduce(total); print(total.item())\n"
        "dist.destroy_process_group()\n"
    )
    env = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store["port"]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    pids = [torch_launcher.fork(sys.executable, str(script), slot=f"r{rank}", RANK=str(rank), **env) for rank in range(2)]
    assert [torch_launcher.hear("exited", pid=pid)["status"] for pid in pids] == [0, 0]
    assert torch_launcher.words("r1") == "2.0\n"
    torch_launcher.tell("kill", pid=store["pid"])
    assert torch_launcher.hear("exited", pid=store["pid"])["slot"] == "store"
