"""A real agent reads the real kernel's log (/dev/kmsg; a file where this user may not write there), also what came while it was away."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle_eye.errors import WireError
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Event
from eagle_eye.wire import Schemas, decode

KMSG = Path("/dev/kmsg")
WAIT_S = 60.0


class Node:
    """An idle node with its agent. Its table knows messages of this test alone, so that no other agent of the machine tells them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.word = folder, uuid.uuid4().hex
        self.log = KMSG if os.access(KMSG, os.R_OK | os.W_OK) else folder / "kern.log"
        self.log.touch()
        table = folder / "own.toml"
        table.write_text(f'[[message]]\ncomponent = "disk"\ncode = "scenario"\npattern = "{self.word} (?P<device>\\\\S+)"\nadvice = "none"\n')
        source = "kmsg" if self.log == KMSG else "file"
        config = f'[agent]\nidle = true\n[collectors.kernel_log]\nsource = "{source}"\npath = "{self.log}"\npatterns = "{table}"\n'
        (folder / "eagle-eye.toml").write_text(config)
        self.agent: subprocess.Popen[bytes] | None = None
        self.stream = EmbeddedStream(folder / "state" / "stream")
        self.offset, self.schemas = 0, Schemas()
        self.events: list[Event] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "eagle_eye.app.cli", "agent", "--config", str(self.folder / "eagle-eye.toml"), "--node", "n1"]
        command += ["--state-dir", str(self.folder / "state"), "--run-dir", str(self.folder / "run"), "--server", "127.0.0.1:9"]
        self.agent = subprocess.Popen(command)

    def kill(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def write(self, device: str) -> None:
        with self.log.open("ab", buffering=0) as file:
            file.write(f"<3>{self.word} {device}\n".encode())

    def told(self) -> list[str]:
        """The devices of the messages that the agent has told, in this order."""
        for message in self.stream.read(OBSERVATIONS, 0, self.offset):
            self.offset = message.offset + 1
            try:
                found = decode(message.value, self.schemas)
            except WireError:
                continue
            if isinstance(found, Event) and found.name == "kernel.error":
                self.events.append(found)
        return [event.attributes["device"] for event in self.events]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.agent is not None:
        made.kill()


def test_messages_are_told_and_so_is_what_came_while_the_agent_was_away(node: Node) -> None:
    node.start()
    tries: list[str] = []

    def heard() -> bool:
        tries.append(f"first-{len(tries)}")
        node.write(tries[-1])
        return bool(node.told())

    until(heard)
    until(lambda: node.told()[-1] == tries[-1])
    node.write("last-before")
    until(lambda: node.told()[-1] == "last-before")
    node.kill()
    node.write("meanwhile")
    written = time.time()
    node.start()
    node.write("after")
    until(lambda: "after" in node.told())
    told = node.told()
    assert told[-2:] == ["meanwhile", "after"]
    assert len(told) - len(set(told)) <= 1, "each once, but for the last one if the agent was killed before it had saved how far it was"
    meanwhile = node.events[-2]
    assert meanwhile.entity.name == "n1"
    if node.log == KMSG:
        assert meanwhile.attributes["written_by"] == "a program"
        assert abs(meanwhile.time - written) < 1.0
