"""What is the matter with the copies in memory that were passed over is in the event of what was loaded in their place."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import messages

from .test_data_position import kept
from .test_storage_reconciler import Node, node  # noqa: F401 - a fixture

DAMAGED = "n1: the copy of step 4 in ee-n0-0.memory (slot 0): its sums are not those of what was sent"


class FakeLauncher(socketserver.ThreadingUnixStreamServer):
    """Answers as a launcher does whose search found nothing that can be used."""

    def __init__(self, path: Path, why: str) -> None:
        self.why, self.told, self.is_told = why, list[dict[str, Any]](), threading.Event()
        super().__init__(str(path), _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: FakeLauncher

    def handle(self) -> None:
        for line in self.rfile:
            message = json.loads(line)
            if message["kind"] == "fetch_memory_checkpoint":
                self.wfile.write(messages.reply(True, state="none", path="", source="", why=self.server.why))
            else:
                self.server.told.append(message)
                self.server.is_told.set()


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], FakeLauncher]]:
    begun: list[FakeLauncher] = []

    def begin(why: str) -> FakeLauncher:
        server = FakeLauncher(tmp_path / "launcher.sock", why)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("EAGLE_EYE_SOCKET", str(tmp_path / "launcher.sock"))
        begun.append(server)
        return server

    yield begin
    for server in begun:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("answered", "why"), [(DAMAGED, DAMAGED), (messages.NO_COPY, "")])
def test_a_damaged_copy_of_the_neighbour_is_named_where_storage_is_loaded(
    node: Callable[..., Node], launcher: Callable[[str], FakeLauncher], answered: str, why: str  # noqa: F811
) -> None:
    ours = node()
    kept(ours, 4, None)
    ours.want(4)
    ours.reconcile()
    asked = launcher(answered)
    assert ours.load().skipped == ((why,) if why else ())
    assert asked.is_told.wait(10.0)
    [message] = asked.told
    assert (message["step"], message["tier"], message["why"]) == (4, "storage", why)


@pytest.mark.parametrize(("answered", "told"), [(DAMAGED, [(-1, "", DAMAGED)]), (messages.NO_COPY, [])])
def test_it_is_named_where_nothing_can_be_loaded_and_a_first_start_is_no_news(
    node: Callable[..., Node], launcher: Callable[[str], FakeLauncher], answered: str, told: list[tuple[int, str, str]]  # noqa: F811
) -> None:
    ours = node()
    asked = launcher(answered)
    assert ours.load() is None
    if told:
        assert asked.is_told.wait(10.0)
    assert [(each["step"], each["tier"], each["why"]) for each in asked.told] == told
