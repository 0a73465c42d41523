"""The one table of all that is promised of checkpoints: parts that fail, hang or are interrupted do not take the others with them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoint import __main__ as run
from benchmarks.checkpoint.__main__ import Part
from benchmarks.report import Row

PRINTED = {"title": "", "rows": [Row("blocked by a save", "2 ms", "≤ 10 ms", True)._asdict(), Row("processor time that other machines took meanwhile", "3 %")._asdict()]}


def python(name: str, code: str) -> Part:
    return Part(name, (sys.executable, "-I", "-S", "-c", code), 0.0)


def good(name: str) -> Part:
    return python(name, f"print({json.dumps(PRINTED)!r})")


def said(rows: list[Row]) -> list[tuple[str, bool | None]]:
    """Without those of the machine."""
    return [(row.what, row.met) for row in rows[:-2]]


def test_a_part_that_fails_is_a_missed_goal_and_the_next_one_runs() -> None:
    told: list[str] = []
    rows = run.table([python("kills", "raise SystemExit(3)"), good("memory")], told.append)
    assert said(rows) == [("kills", False), ("blocked by a save", True)]
    assert rows[0].figure == "ended with 3 and printed no result"
    assert [row.what.split()[0] for row in rows[-2:]] == ["processor", "processes"], "of the whole run, once"
    assert [words.partition(",")[0] for words in told[::2]] == ["1 of 2: kills", "2 of 2: memory"]


def test_a_part_that_stands_is_ended_with_all_that_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    monkeypatch.setattr(run, "END_S", 0.0)
    code = f"import os, signal; child = os.fork(); child and open({str(pid)!r}, 'w').write(str(child)); print(end='', flush=True); signal.pause()"

    def communicate(process: "subprocess.Popen[str]", **_: object) -> None:
        while not (pid.exists() and pid.read_text()):
            assert process.poll() is None
            os.sched_yield()
        raise subprocess.TimeoutExpired(process.args, 1.0)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    [row] = run.rows_of(python("node_kills", code))
    assert (row.what, row.met) == ("node_kills", False)
    assert "not done after 300 s" in row.figure
    while not _is_over(int(pid.read_text())):  # it was killed: the kernel takes a moment
        os.sched_yield()


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_where_it_is_interrupted_what_is_there_is_shown_and_the_rest_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = subprocess.Popen.communicate

    def communicate(process: Any, **words: Any) -> Any:
        if "pause" in process.args[-1]:
            raise KeyboardInterrupt
        return real(process, **words)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    rows = run.table([good("memory"), python("kills", "import signal; signal.pause()"), good("flips")], lambda _: None)
    assert said(rows) == [("blocked by a save", True), ("kills", False), ("flips", False)]


def test_a_part_for_which_there_is_no_memory_is_left_out_and_says_so() -> None:
    [row] = run.rows_of(good("memory")._replace(needs_bytes=1 << 60))
    assert row.met is None
    assert row.figure.startswith("left out: it needs")


@pytest.mark.parametrize("parts", [run.WHOLE, run.QUICK], ids=["whole", "quick"])
def test_each_part_is_a_module_that_is_there_and_all_fit_into_an_hour(parts: tuple[Part, ...]) -> None:
    for part in parts:
        assert (Path(run.__file__).parent / f"{part.command[2].rpartition('.')[2]}.py").exists()
    assert len({part.name for part in parts}) == len(parts)
    assert sum(part.minutes for part in parts) <= 60


def test_the_exit_status_says_whether_a_goal_was_missed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for part, status in ((good("memory"), 0), (python("memory", "pass"), 1)):
            monkeypatch.setattr(run, "QUICK", (part,))
            monkeypatch.setattr(sys, "argv", ["checkpoint", "--quick", "--json"])
            assert run.main() == status
            json.loads(capsys.readouterr().out)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
