import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training.checkpoint import state_copy
from fakes.memory_trainer import Trainer


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_CHECKPOINT_COPIES", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH", "EAGLE_EYE_WORKER", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "0.memory"


@pytest.fixture
def trainer(path: Path) -> Iterator[Trainer]:
    trainer = Trainer(path)
    trainer.step()  # the optimizer has its state now
    assert trainer.memory.prepare(trainer.state())
    yield trainer
    trainer.memory.close()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The copying thread stands before each piece until this is set; the training thread does not."""
    go, copy = threading.Event(), state_copy.StateCopy._copy

    def late(self: state_copy.StateCopy, piece: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert go.wait(10)
        copy(self, piece)

    monkeypatch.setattr(state_copy.StateCopy, "_copy", late)
    yield go
    go.set()
