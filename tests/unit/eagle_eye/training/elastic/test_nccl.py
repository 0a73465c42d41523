"""Groups over NCCL, against a fake of what torch shows of it: waiting for the stream, abort, giving up."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from eagle_eye.errors import Broken, ConfigError, Fenced
from eagle_eye.training.elastic.launcher_session import LauncherSession
from eagle_eye.training.elastic.process_group import nccl
from eagle_eye.training.elastic.process_group.process_group import form
from fakes.launcher_sessions import FakeLauncher
from fakes.nccl import FakeNccl

NAMES = ("a", "b")


class Pair:
    """Two workers with a GPU each."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self.launcher = launcher
        self.fake = FakeNccl()
        self.borders = {name: self.fake.cuda_runtime() for name in NAMES}
        self.sessions = {name: LauncherSession.connect(launcher.path, name, os.getpid()) for name in NAMES}
        self.threads = ThreadPoolExecutor(2)
        for session in self.sessions.values():
            session.join(epoch=0, step=0, micro_batches=2, segments=1, layers=[], fresh=True)

    def meet(self, name: str, epoch: int) -> nccl.NcclGroup:
        session = self.sessions[name]
        group = nccl.form(session, session.next_assignment(epoch - 1), cuda_runtime=lambda: self.borders[name])
        session.use_group(group)
        return group

    def form(self, epoch: int) -> list[nccl.NcclGroup]:
        self.launcher.form(epoch, *NAMES)
        return list(self.threads.map(lambda name: self.meet(name, epoch), NAMES, timeout=30))

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()
        self.threads.shutdown()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    for name in nccl._SETTINGS:
        monkeypatch.setenv(name, "")  # so that what form sets is taken back
        monkeypatch.delenv(name)
    with tempfile.TemporaryDirectory(prefix="elastic") as folder, FakeLauncher(f"{folder}/s") as launcher:
        made = Pair(launcher)
        yield made
        made.close()


def test_wait_lasts_until_the_sum_is_there(pair: Pair) -> None:
    groups = pair.form(1)
    tensors = [torch.ones(2), torch.ones(2) * 4]
    works = [group.all_reduce(tensor, wait=False) for group, tensor in zip(groups, tensors, strict=True)]
    assert tensors[0].tolist() == [1.0, 1.0]
    for work in works:
        work.wait()
    assert [tensor.tolist() for tensor in tensors] == [[5.0, 5.0], [5.0, 5.0]]


def test_the_communicator_can_be_aborted_and_the_watchdog_ends_nothing(pair: Pair) -> None:
    pair.form(1)
    assert [options.config.blocking for options in pair.fake.options] == [False, False]
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_a_fence_aborts_and_frees_who_is_stuck(pair: Pair) -> None:
    first, _ = pair.form(1)
    stuck = pair.threads.submit(first.all_reduce, torch.ones(2))  # the other never comes
    pair.launcher.fence(2, *NAMES)
    with pytest.raises(Broken, match="epoch 1"):
        stuck.result(30)
    assert [group.epoch for group in pair.form(2)] == [2, 2]


def test_construction_gives_up_for_a_newer_epoch(pair: Pair) -> None:
    pair.launcher.form(1, *NAMES)
    alone = pair.threads.submit(pair.meet, "a", 1)
    pair.launcher.wait_for("store", "a", op="get")
    pair.launcher.fence(2, *NAMES)
    with pytest.raises(Fenced):
        alone.result(30)
    assert [group.epoch for group in pair.form(2)] == [2, 2]


def test_without_nccl_the_remedy_is_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pair.launcher.form(1, *NAMES)
    with pytest.raises(ConfigError, match="use backend 'gloo'"):
        form(pair.sessions["a"], pair.sessions["a"].next_assignment(0), backend="nccl")
