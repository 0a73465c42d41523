"""A writer killed with SIGKILL at random moments: nothing acknowledged is lost, nothing torn is returned."""

from pathlib import Path

from benchmarks.chain.stream_kills import KillReport, kill_spoolers, kill_writers


def test_nothing_acknowledged_is_lost_over_25_kills(tmp_path: Path) -> None:
    report = kill_writers(tmp_path, kills=25, seed=7)
    assert report == KillReport(kills=25, acknowledged=report.acknowledged, lost=0, torn=0, out_of_order=0)
    assert report.acknowledged > 1000


def test_a_killed_spooler_hands_on_what_it_had_spooled(tmp_path: Path) -> None:
    report = kill_spoolers(tmp_path, kills=5, seed=7)
    assert report == KillReport(kills=5, acknowledged=report.acknowledged, lost=0, torn=0, out_of_order=0)
    assert report.acknowledged > 50
