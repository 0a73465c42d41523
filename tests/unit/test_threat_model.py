"""The attempts that docs/access.md writes down are those that the benchmark carries out."""

import re
from pathlib import Path

from benchmarks.faults.attempts import KINDS

ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "access.md"


def test_every_attempt_is_written_down_and_every_one_written_down_is_carried_out() -> None:
    written = ROW.findall(DOCUMENT.read_text())
    assert [int(number) for number, _ in written] == list(range(1, len(written) + 1))
    carried_out = [name for kind in KINDS for name in kind.attempts]
    assert sorted(name for _, name in written) == sorted(carried_out)
