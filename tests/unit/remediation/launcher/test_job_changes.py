"""What a job is started with that its last run was not."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Layout
from fakes.sample_values import a_layout
from remediation.launcher.event_log import EventLog
from remediation.launcher.job_changes import MOST, JobChanges
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.start_facts import StartFacts, changed_facts, start_facts
from remediation.launcher.training_command import parse_training_command
from remediation.launcher.vote_log import VoteLog

WAIT_S = 10.0


class Site:
    """A folder with a script, in which runs of one job are started, each by a launcher of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, FakeClock(now=1_700_000_000.0)
        self.command: tuple[str, ...] = (sys.executable, "train.py", "--lr", "3", "--config=conf.toml", "--data", "tokens", "--api-token", "abc")
        self.environment = {"NCCL_DEBUG": "WARN", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "NCCL_AUTH_TOKEN": "secret-1"}
        self.write("train.py", "one")
        self.write("conf.toml", "lr = 3")
        self.write("tokens/part-1", "")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def settings(self, run: str) -> LauncherSettings:
        return LauncherSettings(job=f"tenant/gpt/{run}", node="node-a", command=self.command, state_dir=self.folder / "state", run_dir=self.folder / "run", nproc=2)

    def facts(self, run: str) -> StartFacts:
        settings = self.settings(run)
        return start_facts(settings, parse_training_command(settings.command, self.folder), self.folder, self.environment, self.clock.now())

    def launcher(self, run: str, facts: Callable[[], StartFacts] | None = None) -> "Run":
        self.clock.advance(3600.0)
        return Run(self, run, facts or (lambda: self.facts(run)))

    def run(self, run: str) -> list[str]:
        """What is told of a run that this node coordinates."""
        launcher = self.launcher(run)
        launcher.begin()
        return launcher.told()


class Run:
    """One launcher."""

    def __init__(self, site: Site, run: str, facts: Callable[[], StartFacts]) -> None:
        settings = site.settings(run)
        self.events: list[Event] = []
        self.votes = VoteLog(settings.state_dir, settings.job, settings.node)
        event_log = EventLog(settings.job, settings.node, "i", site.clock, self._write)
        self.changes = JobChanges(settings.last_start, settings.node, self.votes, event_log, facts, site.clock)
        self.path = settings.last_start

    def _write(self, _topic: str, _key: str, value: bytes) -> None:
        event = wire.decode(value, wire.Schemas())
        assert isinstance(event, Event)
        self.events.append(event)

    def begin(self, coordinator: str = "node-a", epoch: int = 1) -> None:
        layout: Layout = a_layout(epoch, coordinator)
        self.votes.valid(layout)

    def told(self) -> list[str]:
        asyncio.run(asyncio.wait_for(self.changes.tell(), WAIT_S))
        return [event.message.removesuffix(", since its last run") for event in self.events]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_run_that_is_started_differently_tells_each_difference(site: Site) -> None:
    assert site.run("r1") == [], "of the first run nothing has changed"
    site.command = (*site.command[:3], "6", *site.command[4:], "--bf16")
    site.environment |= {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    site.write("train.py", "two")
    site.write("tokens/part-2", "")
    told = site.run("r2")
    assert told[0] == "command --lr 3 → --lr 6 --bf16"
    assert [text.split()[0:2] for text in told[1:3]] == [["data", "tokens"], ["file", "train.py"]]
    assert [text for text in told if "_" in text] == ["NCCL_DEBUG WARN → INFO", "OMP_NUM_THREADS none → 4"]
    assert site.run("r3") == [], "it is started as the run before"


def test_the_event_names_the_job_and_both_times(site: Site) -> None:
    site.run("r1")
    first = site.clock.now()
    site.environment["NCCL_DEBUG"] = "INFO"
    launcher = site.launcher("r2")
    launcher.begin()
    launcher.told()
    [event] = launcher.events
    assert (event.name, event.job, str(event.entity)) == ("job.changed", "tenant/gpt/r2", "job tenant/gpt/r2")
    assert event.attributes == {"what": "NCCL_DEBUG", "before": "WARN", "after": "INFO", "known": f"{first:.0f}", "seen": f"{first + 3600:.0f}"}


def test_secrets_and_the_share_of_a_machine_are_not_told_and_secrets_not_written_down(site: Site) -> None:
    site.run("r1")
    site.command = (*site.command[:-1], "abcd")
    site.environment |= {"NCCL_AUTH_TOKEN": "secret-2", "CUDA_VISIBLE_DEVICES": "1", "HOME": "/home"}
    assert site.run("r2") == []
    kept = site.settings("r2").last_start.read_text()
    assert "abcd" not in kept
    assert "secret" not in kept


def test_twin_a_launcher_that_is_started_again_in_the_middle_of_its_run_tells_nothing(site: Site) -> None:
    site.run("r1")
    site.write("train.py", "two")
    again = site.launcher("r1")
    again.begin(epoch=2)
    assert again.told() == []
    assert len(site.run("r2")) == 1, "the next run has the script that is there now"


def test_twin_a_run_that_another_launcher_coordinates_is_not_told_here(site: Site) -> None:
    site.run("r1")
    site.write("train.py", "two")
    follower = site.launcher("r2")
    follower.begin("node-b")
    assert follower.told() == []


def test_nothing_is_told_before_the_run_has_begun(site: Site) -> None:
    waiting = site.launcher("r1")

    async def a_while() -> None:
        telling = asyncio.ensure_future(waiting.changes.tell())
        await asyncio.sleep(0)
        assert not telling.done()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    asyncio.run(a_while())
    assert not waiting.path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":1}', b'{"version":2,"facts":{}}', b"\xff"])
def test_twin_a_torn_file_is_no_knowledge(site: Site, content: bytes) -> None:
    site.run("r1")
    site.settings("r1").last_start.write_bytes(content)
    site.write("train.py", "two")
    assert site.run("r2") == []
    site.write("train.py", "three")
    assert len(site.run("r3")) == 1


def test_whatever_goes_wrong_ends_nothing(site: Site) -> None:
    def broken() -> StartFacts:
        raise ValueError("a name that is none")

    launcher = site.launcher("r1", broken)
    launcher.begin()
    assert launcher.told() == []
    launcher.path.parent.parent.mkdir()
    launcher.path.parent.write_text("no folder")
    assert site.run("r2") == []


def test_of_very_many_differences_the_others_are_counted(site: Site) -> None:
    site.run("r1")
    site.environment |= {f"NCCL_{number}": "1" for number in range(MOST + 3)}
    told = site.run("r2")
    assert (len(told), told[-1]) == (MOST + 1, "differences beyond these 0 → 3")


def test_packages_and_commit_are_known_by_names_of_files(site: Site) -> None:
    (site.folder / "venv" / "bin").mkdir(parents=True)
    packages = site.folder / "venv" / "lib" / "python3.11" / "site-packages"
    for name in ("torch-2.8.0.dist-info", "flash_attn-2.7.dist-info", "no-version", "old-1.0-py3.11.egg-info"):
        (packages / name).mkdir(parents=True)
    site.write(".git/HEAD", "ref: refs/heads/main\n")
    site.write(".git/packed-refs", f"# pack-refs\n{'a' * 40} refs/heads/main\n")
    command = parse_training_command(site.command, site.folder)
    other = msgspec.structs.replace(command, interpreter=str(site.folder / "venv" / "bin" / "python"))

    def facts() -> StartFacts:
        return start_facts(site.settings("r1"), other, site.folder, {}, 0.0)

    before = facts()
    assert (before.values["python"], before.values["commit"]) == ("3.11", "a" * 12)
    assert before.packages == {"torch": "2.8.0", "flash-attn": "2.7", "old": "1.0"}
    (packages / "torch-2.8.0.dist-info").rename(packages / "torch-2.9.0.dist-info")
    site.write(".git/refs/heads/main", "b" * 40)
    changed = [(each.what, each.before, each.after) for each in changed_facts(before, facts())]
    assert changed == [("commit", "a" * 12, "b" * 12), ("package torch", "2.8.0", "2.9.0")]
    assert "pytest" in site.facts("r1").packages, "of our own interpreter"


def test_words_that_are_no_names_of_files_are_no_facts(site: Site) -> None:
    site.command = (*site.command, "x" * 5000, "--data", "missing", "--database=", "/dev/null")
    assert [name for name in site.facts("r1").values if name.startswith(("file", "data"))] == ["file train.py", "file conf.toml", "data tokens"]
