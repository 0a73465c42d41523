"""What several unit tests share: a clock, a ledger of their own, an engine over a job of paper. What they need is imported by who runs them,
and not by the process that starts those: they wait for it."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine as SqlEngine

    from collectors.training import TrainingCollector
    from eagle_eye.clock import FakeClock
    from eagle_eye.ledger import Ledger
    from fakes.process_looks import FakeProcesses


def pytest_configure(config: pytest.Config) -> None:
    """Before torch is imported: its threads spin while they wait for one another, and each process of a test run has one core.
    Before a property is declared: how long an example takes says how busy the machine is."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # others run the tests
    import hypothesis

    hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """SQLAlchemy keeps what it compiled for each engine alone, and every test opens a ledger of its own: all share what the first one's has."""
    from eagle_eye.ledger import sqlite

    create_engine, first = sqlite.create_engine, sqlite.create_engine("sqlite://")

    def sharing(*args: Any, **kwargs: Any) -> "SqlEngine":
        engine = create_engine(*args, **kwargs)
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "create_engine", sharing)
        yield


THREAD_END_S = 10.0
OF_THE_PROCESS = ("eagle-eye-probe", "eagle-eye-worker_threads", "_poll_wrapper")
"""Threads that live as long as their process, by design: the probe's socket, idle threads for calls into torch, gRPC's poller."""


@pytest.fixture(autouse=True)
def left_as_it_was():
    """What a test starts ends with it: a thread that went on would log, count and raise in the tests that follow.
    Streamlit's AppTest leaves a script of its own as __main__, which a spawned child would run again."""
    before, main = set(threading.enumerate()), sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
    left = [thread for thread in threading.enumerate() if thread not in before and not any(name in thread.name for name in OF_THE_PROCESS)]
    for thread in left:
        thread.join(THREAD_END_S)
    assert not (alive := [thread.name for thread in left if thread.is_alive()]), f"threads that outlive their test: {alive}"


@pytest.fixture
def clock() -> "FakeClock":
    from eagle_eye.clock import FakeClock

    return FakeClock()


@pytest.fixture
def processes() -> "FakeProcesses":
    from fakes.process_looks import FakeProcesses

    return FakeProcesses()


@pytest.fixture
def collector(tmp_path: Path, clock: "FakeClock", processes: "FakeProcesses") -> "TrainingCollector":
    from collectors.training import TrainingCollector

    return TrainingCollector(run_dir=tmp_path, node="n1", clock=clock, inspector=processes.inspector(clock))


@pytest.fixture
def ledger(ledger_path: Path) -> "Iterator[Ledger]":
    from eagle_eye.ledger import Ledger

    ledger = Ledger.open(ledger_path)
    yield ledger
    ledger.close()


@pytest.fixture
def make_world(empty_ledger, tmp_path):
    from eagle_eye.ledger import Ledger
    from eagle_eye.types import Mode
    from fakes.world import World
    from remediation.policy.engine_settings import EngineSettings

    opened = []

    def world(mode: Mode = Mode.AUTO, nodes=("node-a", "node-b"), receiver="", **policy) -> World:
        path = tmp_path / f"ledger{len(opened)}.sqlite"
        shutil.copy(empty_ledger, path)
        opened.append(Ledger.open(path))
        return World(ledger=opened[-1], policy=EngineSettings(mode=mode, **policy), nodes=nodes, receiver=receiver)

    yield world
    for ledger in opened:
        ledger.close()
