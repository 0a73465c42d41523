"""The agent: schedules, batches, events, memory; collectors that fail or hang; a stream that goes away."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from collectors.agent.agent import Agent
from collectors.agent.agent_budget import AgentBudget
from collectors.agent.batch_builder import BatchBuilder
from collectors.agent.job_registry import ENDING_REFRESHES, FORGOTTEN_S, JobRegistry
from collectors.agent.lazy_stream import LazyStream
from collectors.agent.schedule import CollectorThread, HealthState, Schedule
from collectors.agent.unsigned_event import unsigned_event
from collectors.gpu import GpuCollector
from eagle_eye.clock import FakeClock
from eagle_eye.errors import StreamUnavailable
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.types import Batch, Event, Kind, Notice, Reading, Record, SchemaRecord, StepReading
from eagle_eye.wire import Schemas, decode
from fakes.nvml import FakeNvml

NOW = 1_700_000_000.5


class Records:
    """A writer that keeps what it gets, decoded."""

    def __init__(self) -> None:
        self.schemas = Schemas()
        self.written: list[tuple[str, Record]] = []

    def write(self, topic: str, key: str, value: bytes, *, keep: bool = False) -> None:
        assert topic == OBSERVATIONS
        record = decode(value, self.schemas)
        if isinstance(record, SchemaRecord):
            self.schemas.add(record)
        self.written.append((key, record))

    def batches(self, job: str = "") -> list[Batch]:
        return [record for key, record in self.written if isinstance(record, Batch) and job in {"", key}]

    def events(self, name: str = "") -> list[Event]:
        return [record for _, record in self.written if isinstance(record, Event) and name in {"", record.name}]


class Scripted:
    """A collector that returns, raises or waits for what the test says."""

    def __init__(self, act: Callable[[], list[Any]]) -> None:
        self.act = act
        self.calls = 0

    def collect(self) -> list[Any]:
        self.calls += 1
        return self.act()


class Node:
    """An agent with its surroundings, driven turn by turn; collectors run in their real threads."""

    def __init__(self, folder: Path, *collectors: CollectorThread, idle: bool = False, budget: AgentBudget | None = None) -> None:
        self.budget = budget
        self.clock = FakeClock(NOW)
        self.folder = folder
        self.records = Records()
        self.inbox: Queue[Any] = Queue()
        self.watched = list(collectors)
        self.hanging: set[str] = set()
        self.agent = self.new_agent(idle=idle)
        for each in self.watched:
            each.start(self.inbox.put)

    def new_agent(self, incarnation: str = "b1", *, idle: bool = False) -> Agent:
        jobs = JobRegistry(self.folder, self.folder / "agent" / "n1.json", self.clock.now())
        return Agent("n1", self.watched, self.records, jobs, self.inbox, clock=self.clock, incarnation=incarnation, idle=idle, budget=self.budget)

    def seconds(self, count: float) -> None:
        """Let time pass in steps of 0.1 s; every question is answered before the next step, but those that hang."""
        for _ in range(round(count * 10)):
            self.clock.advance(0.1)
            self.agent.run_once()
            self.settle()

    def settle(self) -> None:
        wait_until(lambda: not any(each.schedule.pending for each in self.watched if each.name not in self.hanging), self.agent.run_once)

    def list_job(self, run: str = "r1", state: str = "running") -> None:
        (self.folder / "jobs").mkdir(exist_ok=True)
        unfinished = self.folder / f"{run}.new"
        unfinished.write_text(json.dumps({"job": f"default/gpt/{run}", "run": run, "state": state}))
        unfinished.replace(self.folder / "jobs" / f"{run}.json")

    def strike_off(self, run: str = "r1") -> None:
        (self.folder / "jobs" / f"{run}.json").unlink()

    def close(self) -> None:
        for each in self.watched:
            each.close()


def wait_until(done: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    pause = threading.Event()
    for _ in range(20_000):
        meanwhile()
        if done():
            return
        pause.wait(0.0005)
    pytest.fail("it did not happen within ten seconds")


def reading(source: str = "host", kind: Kind = Kind.NODE, entities: tuple[str, ...] = ("n1",), value: float = 1) -> Reading:
    matrix = np.full((len(entities), 2), value, np.float32)
    return Reading(source=source, kind=kind, entities=entities, names=("a", "b"), matrix=matrix, time=NOW)


def steps(*workers: str) -> StepReading:
    return StepReading(
        source="training", workers=workers, names=("step_s",), numbers=np.array([4]), epochs=np.array([1]),
        ends=np.ones((1, len(workers))), values=np.ones((1, len(workers), 1)),
    )  # fmt: skip


def scripted(name: str, act: Callable[[], list[Any]], interval_s: float = 1.0, timeout_s: float = 3.0) -> CollectorThread:
    return CollectorThread(name, Scripted(act), Schedule(interval_s=interval_s, timeout_s=timeout_s))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def begin(*collectors: CollectorThread, **options: Any) -> Node:
        nodes.append(Node(tmp_path, *collectors, **options))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.close()


Start = Callable[..., Node]

# --- batches


def test_one_batch_a_second_at_the_full_second(start: Start) -> None:
    node = start(scripted("host", lambda: [reading()]))
    node.list_job()
    node.seconds(5)
    batches = node.records.batches()
    assert [batch.number for batch in batches] == [0, 1, 2, 3, 4]
    assert {(batch.node, batch.incarnation, batch.job) for batch in batches} == {("n1", "b1", "default/gpt/r1")}
    assert all(batch.time % 1 < 0.11 for batch in batches)
    assert all(len(batch.blocks) == 1 for batch in batches), "asked just before the second, so the answer is in"


def test_a_schema_comes_before_its_first_batch_and_again_each_minute(start: Start) -> None:
    node = start(scripted("host", lambda: [reading()]))
    node.list_job()
    node.seconds(125)
    kinds = [type(record) for _, record in node.records.written]
    assert kinds[:2] == [SchemaRecord, Batch]
    assert kinds.count(SchemaRecord) == 3


def test_node_rows_go_to_every_job_and_worker_rows_to_their_own(start: Start) -> None:
    workers = ("r1/n1/0", "r2/n1/0", "r1/n1/1", "gone/n1/0")
    node = start(
        scripted(
            "all",
            lambda: [reading(), reading("training", Kind.WORKER, workers), steps("r2/n1/0"), steps("gone/n1/0")],
        )
    )
    node.list_job("r1")
    node.list_job("r2")
    node.seconds(2)
    first, second = node.records.batches("default/gpt/r1")[-1], node.records.batches("default/gpt/r2")[-1]
    assert [block.reading.entities for block in first.blocks if isinstance(block.reading, Reading)] == [
        ("n1",),
        ("r1/n1/0", "r1/n1/1"),
    ]
    assert [block.reading.entities for block in second.blocks if isinstance(block.reading, Reading)] == [
        ("n1",),
        ("r2/n1/0",),
    ]
    assert [block.reading.workers for block in second.blocks if isinstance(block.reading, StepReading)] == [
        ("r2/n1/0",)
    ]
    assert not any(isinstance(block.reading, StepReading) for block in first.blocks)


def test_of_two_readings_of_a_source_the_newest_counts_and_of_the_steps_all() -> None:
    gathered = BatchBuilder(lambda worker: "default/gpt/r1")
    for value in (1.0, 2.0):
        gathered.add(reading(value=value))
        gathered.add(steps("r1/n1/0"))
    blocks = gathered.blocks("default/gpt/r1")
    assert [type(block.reading) for block in blocks] == [Reading, StepReading, StepReading]
    assert isinstance(blocks[0].reading, Reading)
    assert blocks[0].reading.matrix[0, 0] == 2.0
    gathered.clear()
    assert gathered.blocks("default/gpt/r1") == ()


def test_a_batch_comes_even_when_no_collector_has_anything(start: Start) -> None:
    node = start(scripted("empty", list))
    node.list_job()
    node.seconds(3)
    assert [batch.blocks for batch in node.records.batches()] == [(), (), ()], "it is the sign that the node lives"


def test_a_clock_that_is_set_back_does_not_stop_the_batches(start: Start) -> None:
    node = start(scripted("host", lambda: [reading()]))
    node.list_job()
    node.seconds(3)
    node.clock.jump(-3600.0)
    node.seconds(3)
    batches = node.records.batches()
    assert len(batches) >= 6
    assert batches[-1].monotonic_s - batches[-1].time == pytest.approx(3600.0), "the monotonic clock was not set"


# --- which jobs


def test_a_node_without_a_job_sends_nothing_until_somebody_says_that_it_is_idle(start: Start) -> None:
    node = start(scripted("host", lambda: [reading()]))
    node.seconds(3)
    assert node.records.written == []
    node.list_job()
    node.seconds(3)
    node.list_job(state="stopped")
    node.seconds(5)
    keys = list(dict.fromkeys(key for key, _ in node.records.written))
    assert keys == ["default/gpt/r1", "idle/n1"]


def test_the_configuration_may_say_that_it_is_idle(start: Start) -> None:
    node = start(idle=True)
    node.seconds(2)
    node.list_job()
    node.seconds(2)
    assert [batch.job for batch in node.records.batches()] == ["idle/n1"] * 2 + ["default/gpt/r1"] * 2


def test_steps_of_a_job_that_a_collector_saw_first_are_sent_to_it(start: Start) -> None:
    found = [steps("r1/n1/0")]
    node = start(scripted("training", lambda: [found.pop()] if found else []))
    node.list_job()
    node.seconds(2)
    sent = [block.reading for batch in node.records.batches("default/gpt/r1") for block in batch.blocks]
    assert [type(each) for each in sent] == [StepReading]


def test_the_last_steps_of_a_job_that_was_struck_off_are_sent_to_it(start: Start) -> None:
    found: list[Any] = []
    node = start(scripted("training", lambda: found))
    node.list_job()
    node.seconds(2)
    node.strike_off()
    node.seconds(1)
    found.append(steps("r1/n1/0"))
    node.seconds(1)
    found.clear()
    node.seconds(5)
    sent = [batch for batch in node.records.batches("default/gpt/r1") if batch.blocks]
    assert len(sent) == 1
    assert node.records.batches()[-1].job == "idle/n1"


def test_a_restarted_agent_goes_on_with_its_jobs(start: Start) -> None:
    node = start()
    node.list_job()
    node.seconds(2)
    node.strike_off()
    node.agent = node.new_agent("b2")
    node.seconds(3)
    assert [batch.job for batch in node.records.batches() if batch.incarnation == "b2"] == ["default/gpt/r1"] * 3
    node.seconds(FORGOTTEN_S + ENDING_REFRESHES)
    assert node.records.batches()[-1].job == "idle/n1", "what no launcher has written down for long is given up"


def test_a_restarted_agent_knows_that_it_was_idle(start: Start) -> None:
    node = start()
    node.list_job()
    node.seconds(2)
    node.list_job(state="stopped")
    node.seconds(ENDING_REFRESHES + 2)
    node.agent = node.new_agent("b2")
    node.seconds(2)
    assert {batch.job for batch in node.records.batches() if batch.incarnation == "b2"} == {"idle/n1"}


@pytest.mark.parametrize("text", ["{", '{"version": 9, "jobs": {}}', "[]"])
def test_a_memory_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "n1.json").write_text(text)
    jobs = JobRegistry(tmp_path, tmp_path / "n1.json", NOW)
    jobs.refresh(NOW)
    assert (jobs.running, jobs.idle) == ((), False)


def test_a_memory_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("a file where the folder should be")
    jobs = JobRegistry(tmp_path, tmp_path / "agent" / "n1.json", NOW)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "r1.json").write_text('{"job": "default/gpt/r1", "run": "r1"}')
    jobs.refresh(NOW)
    assert jobs.running == ("default/gpt/r1",)


# --- events


def test_an_event_is_sent_at_once_and_signed(start: Start) -> None:
    found = [unsigned_event("stall", Kind.WORKER, "r1/n1/0", NOW, "stands still", "default/gpt/r1", step=3)]
    node = start(scripted("training", lambda: [found.pop()] if found else [], interval_s=0.2))
    node.list_job()
    node.seconds(0.2)
    (event,) = node.records.events()
    assert node.records.batches() == [], "it did not wait for the second"
    assert (event.node, event.incarnation, event.number, event.job) == ("n1", "b1", 0, "default/gpt/r1")
    assert event.attributes == {"step": "3"}


def test_an_event_of_the_node_goes_to_every_job_with_its_own_number(start: Start) -> None:
    found = [unsigned_event("gpu.xid", Kind.GPU, "GPU-1", NOW, "Xid 79", code=79)]
    node = start(scripted("gpu", lambda: [found.pop()] if found else []))
    node.list_job("r1")
    node.list_job("r2")
    node.seconds(1)
    events = node.records.events()
    assert sorted(event.job for event in events) == ["default/gpt/r1", "default/gpt/r2"]
    assert len({event.id for event in events}) == 2


@pytest.mark.parametrize(("age", "told"), [(0.0, True), (5.0, True), (-30.0, False), (60.0, False)])
def test_an_event_has_the_monotonic_clock_of_its_moment_unless_the_clock_was_set_meanwhile(start: Start, age: float, told: bool) -> None:
    found = [unsigned_event("stall", Kind.WORKER, "r1/n1/0", NOW + 3600.0 - age, "stands still", "default/gpt/r1")]
    node = start(scripted("training", lambda: [found.pop()] if found else [], interval_s=0.2))
    node.clock.jump(3600.0)
    node.list_job()
    node.seconds(0.2)
    (event,) = node.records.events()
    assert event.monotonic_s == (event.time - 3600.0 if told else 0.0)


# --- collectors that fail or hang


def test_a_hung_collector_is_told_and_delays_nobody(start: Start) -> None:
    nvml = FakeNvml(gpus=2)
    gpu = CollectorThread("gpu", GpuCollector(nvml=nvml, clock=FakeClock(NOW)), Schedule(timeout_s=3.0))
    node = start(gpu, scripted("host", lambda: [reading()]))
    node.list_job()
    node.seconds(2)
    nvml.hang("nvmlDeviceGetFieldValues", "GPU-00000001")
    node.hanging.add("gpu")
    node.seconds(1)
    assert nvml.wait_until_hanging(60.0), "its thread may come to the call later than our seconds pass"
    node.seconds(5)
    (event,) = node.records.events()
    assert (event.name, event.entity.name, event.attributes["collector"]) == ("collector.failing", "n1", "gpu")
    assert event.attributes["reason"] == "no result within 3 s: nvmlDeviceGetFieldValues of GPU 1 (GPU-00000001) has not returned"
    assert node.agent.status()["gpu"] == {"health": HealthState.HUNG, "reason": event.attributes["reason"], "unavailable": ""}
    late = node.records.batches()[-3:]
    assert [len(batch.blocks) for batch in late] == [1, 1, 1], "the host's numbers still come"
    nvml.release()
    node.hanging.clear()
    node.seconds(2)
    assert [event.name for event in node.records.events()] == ["collector.failing", "collector.recovered"]
    assert len(node.records.batches()[-1].blocks) == 2
    assert node.agent.status()["gpu"]["health"] == HealthState.OK


def test_a_hung_collector_is_not_asked_again_before_it_answers(start: Start) -> None:
    release = threading.Event()
    calls: list[bool] = []

    def act() -> list[Any]:
        calls.append(True)
        release.wait(10)
        return []

    node = start(scripted("hung", act))
    node.hanging.add("hung")
    node.seconds(0.1)
    wait_until(lambda: bool(calls))
    node.seconds(8)
    release.set()
    assert calls == [True]


def test_a_failing_collector_is_told_once_asked_less_often_and_told_when_it_is_back(start: Start) -> None:
    broken = True

    def act() -> list[Any]:
        if broken:
            raise OSError("no such sensor")
        return [reading()]

    failing = scripted("sensor", act)
    node = start(failing)
    node.list_job()
    node.seconds(60)
    assert isinstance(failing.collector, Scripted)
    assert 4 <= failing.collector.calls <= 6, "after 2, 4, 8, 16, 32 s"
    (event,) = node.records.events()
    assert event.attributes["reason"] == "OSError: no such sensor"
    broken = False
    node.seconds(60)
    assert [event.name for event in node.records.events()] == ["collector.failing", "collector.recovered"]
    assert len(node.records.batches()[-1].blocks) == 1


def test_why_a_collector_has_nothing_to_read_is_in_the_status(start: Start) -> None:
    gpu = CollectorThread("gpu", GpuCollector(nvml=FakeNvml(gpus=0), clock=FakeClock(NOW)), Schedule())
    node = start(gpu)
    node.list_job()
    node.seconds(2)
    assert node.agent.status()["gpu"] == {"health": "ok", "reason": "", "unavailable": "this node has no GPU"}
    assert node.records.events() == []


# --- the stream


def test_schemas_are_sent_again_when_the_stream_is_back(start: Start) -> None:
    node = start(scripted("host", lambda: [reading()]))
    node.list_job()
    node.seconds(3)
    node.inbox.put(Notice(name="stream.recovered", time=NOW, message=""))
    node.seconds(2)
    assert sum(isinstance(record, SchemaRecord) for _, record in node.records.written) == 2


@pytest.mark.parametrize("name", ["spool.dropped", "spool.removed"])
def test_dropped_records_and_a_deleted_spool_are_told_in_the_stream(start: Start, name: str) -> None:
    node = start()
    node.list_job()
    node.inbox.put(Notice(name=name, time=NOW, message="what became of the spool"))
    node.seconds(0.1)
    assert [event.message for event in node.records.events(name)] == ["what became of the spool"]


def test_a_stream_that_cannot_be_opened_is_away_and_is_opened_later() -> None:
    errors: list[Exception] = [OSError("No space left on device")]
    taken: list[str] = []

    class Taking:
        def append(self, topic: str, items: Any) -> None:
            taken.append(topic)

        def close(self) -> None:
            taken.append("closed")

    def opening() -> Any:
        if errors:
            raise errors.pop()
        return Taking()

    stream = LazyStream(opening)
    with pytest.raises(StreamUnavailable, match="No space left"):
        stream.append("t", [])
    stream.append("t", [])
    stream.close()
    assert taken == ["t", "closed"]


# --- putting one together


def test_beyond_its_budget_the_agent_asks_its_costliest_collector_less_often_and_says_so(tmp_path: Path) -> None:
    busy, urgent = scripted("busy", lambda: [reading(value=sum(range(1000)))]), scripted("urgent", lambda: [reading("urgent")])
    urgent.collector.urgent = True  # type: ignore[attr-defined]
    node = Node(tmp_path, busy, urgent, budget=AgentBudget(1e-6, 1e6))
    node.list_job()
    try:
        node.seconds(41)
    finally:
        node.close()
    assert (busy.schedule.pace, urgent.schedule.pace) == (8, 1)
    told = [event for event in node.records.events() if event.name == "agent.budget"]
    assert [(event.attributes["collector"], event.attributes["pace"]) for event in told] == [("busy", "2"), ("busy", "4"), ("busy", "8")]
    assert "agent.cpu_percent allows 1e-06" in told[0].message


@pytest.mark.parametrize("damaged", [b'{"jobs": {"\xff": {}}}', b'{"more": ' + b"[" * 100_000, b"{"])
def test_saved_jobs_that_are_damaged_in_any_way_end_no_agent(tmp_path: Path, damaged: bytes) -> None:
    saved = tmp_path / "n1.json"
    saved.write_bytes(damaged)
    assert JobRegistry(tmp_path, saved, NOW).running == ()
