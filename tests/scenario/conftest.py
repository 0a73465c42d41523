"""A zygote of its own for each test that wants one, and one that has imported torch, for all of them; launchers and their leader; the end of an undisturbed run."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.elastic.chaos import STEPS
from benchmarks.elastic.invariants import Expected, reference
from eagle_eye.training import messages, zygote
from fakes.launchers import FakeLeader, LauncherCluster

PATIENCE_S = 120.0


class Launcher:
    """Plays the launcher: starts a zygote and talks with it."""

    def __init__(self, home: Path, modules: tuple[str, ...] = ()) -> None:
        self.home = home
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(zygote.command(sys.executable, theirs.fileno()), pass_fds=[theirs.fileno()])
        theirs.close()
        self.socket = ours
        self.socket.settimeout(PATIENCE_S)
        self._lines, self._heard = messages.Lines(), list[messages.ProbeMessage]()
        self.tell("import", modules=modules)
        self.ready = self.hear("ready")

    def tell(self, kind: str, **fields: Any) -> None:
        self.socket.sendall(messages.encode(kind, **fields))

    def hear(self, kind: str, **wanted: Any) -> messages.ProbeMessage:
        """The next message of that kind; others wait their turn."""
        while True:
            for index, message in enumerate(self._heard):
                if message["kind"] == kind and wanted.items() <= message.items():
                    return self._heard.pop(index)
            data = self.socket.recv(65536)
            assert data, "the zygote is gone"
            self._heard += [messages.decode(line) for line in self._lines.feed(data)]

    def fork(self, *argv: str, slot: str = "0", **env: str) -> int:
        """Start a command; returns its pid."""
        self.tell(
            "fork", slot=slot, argv=argv, cwd=str(self.home), log=str(self.log(slot)), env={**os.environ, **env}
        )
        return int(self.hear("forked", slot=slot)["pid"])

    def run(self, *argv: str, slot: str = "0", **env: str) -> int:
        """Run a command to its end; returns its status."""
        return int(self.hear("exited", pid=self.fork(*argv, slot=slot, **env))["status"])

    def python(self, text: str, *arguments: str, slot: str = "0", **env: str) -> int:
        script = self.home / "script.py"
        script.write_text(text)
        return self.run(sys.executable, "script.py", *arguments, slot=slot, **env)

    def log(self, slot: str = "0") -> Path:
        return self.home / f"{slot}.log"

    def words(self, slot: str = "0") -> str:
        return self.log(slot).read_text()

    def end(self) -> None:
        self.socket.close()
        self.process.wait(PATIENCE_S)


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zygote") as folder:  # short: paths of unix sockets are limited
        yield Path(folder)


@pytest.fixture
def launcher(home: Path) -> Iterator[Launcher]:
    made = Launcher(home)
    yield made
    made.end()


@pytest.fixture(scope="session")
def torch_launcher() -> Iterator[Launcher]:
    with tempfile.TemporaryDirectory(prefix="zygote") as folder:
        made = Launcher(Path(folder), zygote.PREIMPORTED)
        yield made
        made.end()


@pytest.fixture(scope="session")
def expected() -> Expected:
    """What fault schedules have to end with."""
    return reference(STEPS)


@pytest.fixture
def leader() -> Iterator[FakeLeader]:
    made = FakeLeader(grants=True)
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LauncherCluster]:
    """For launchers that start train.py: the SCRIPT of the test's module, if it has one."""
    made = LauncherCluster(tmp_path)
    script = getattr(request.module, "SCRIPT", "")
    if script:
        (tmp_path / "train.py").write_text(script)
    yield made
    made.close()
