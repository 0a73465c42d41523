"""`eagle-eye rules`: what it prints of good and bad packs, and how it exits."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from detectors.rules.pack import rule_set
from eagle_eye.app import plugin_wiring
from eagle_eye.app.cli import main
from eagle_eye.app.rule_metrics import doubts, known_metrics
from eagle_eye.config import Config

PACK = '''[[rule]]
name = "gpu_hot"
entity = "gpu"
when = "temperature_celsius >= 70"
for_s = 60
summary = "it is warm"
advice = "look at its water"
fires = [{ temperature_celsius = 75 }]
quiet = [{ temperature_celsius = 65 }]

[[rule]]
name = "gpu_remap_pending"
enabled = false
'''


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rules.toml"
    path.write_text(PACK)
    return path


def typed(*words: object) -> Result:
    result = CliRunner().invoke(main, ["rules", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), "a bug shows its traceback"
    return result


def test_a_good_pack_is_fine(pack):
    checked = typed("check", pack)
    assert (checked.exit_code, checked.stdout) == (0, f"{pack} is fine: 1 rule, 1 in the place of one of this release, 1 switched off\n")


def test_a_mistake_is_told_with_its_line_and_ends_with_one(pack):
    pack.write_text(PACK.replace("for_s = 60", 'for_s = "long"'))
    checked = typed("check", pack)
    assert checked.exit_code == 1
    assert f"{pack}:5: for_s is 'long'" in " ".join(checked.stdout.split())


def test_a_pack_that_switches_off_what_does_not_exist_is_not_fine(pack):
    pack.write_text(PACK.replace("gpu_remap_pending", "gpu_remap_pendingg"))
    checked = typed("check", pack)
    assert checked.exit_code == 1
    assert f"{pack}:12: it switches off 'gpu_remap_pendingg'" in " ".join(checked.stdout.split())
    assert "did you mean 'gpu_remap_pending'?" in " ".join(checked.stdout.split())
    assert "is fine" not in checked.stdout


def test_a_metric_that_nobody_reads_is_doubted_and_no_mistake(pack):
    pack.write_text(PACK.replace("temperature_celsius", "temperature_celcius"))
    checked = typed("check", pack)
    assert checked.exit_code == 0
    assert "did you mean temperature_celsius?" in " ".join(checked.stdout.split())


def test_every_rule_of_this_release_is_about_a_metric_that_is_read():
    assert [str(doubt) for doubt in doubts(rule_set(()).rules)] == []
    assert all(known_metrics().values())


def test_examples_are_run_and_one_that_comes_out_otherwise_is_named(pack):
    assert typed("test", pack).stdout == "1 rules, 2 examples, 0 of them came out otherwise\n"
    pack.write_text(PACK.replace("= 75", "= 69"))
    tested = typed("test", pack)
    assert tested.exit_code == 1
    assert 'does not fire for {"temperature_celsius":69.0}; it should' in " ".join(tested.stdout.split())


def test_a_rule_without_examples_is_not_tested(pack):
    pack.write_text(PACK.replace("quiet =", "# quiet ="))
    tested = typed("test", pack)
    assert tested.exit_code == 1
    assert "gpu_hot: give it an example under quiet" in " ".join(tested.stdout.split())


def test_the_list_fits_the_terminal_and_follows_the_configuration(pack):
    (pack.parent / "eagle-eye.toml").write_text(f'[detectors.metric_rules]\npacks = ["{pack}", "{pack}x"]\n')
    listed = typed("list")
    assert listed.exit_code == 0
    assert max(map(len, listed.stdout.splitlines())) <= 80
    assert f"left out: {pack}x:1: cannot be read" in listed.stderr
    rows = {row["name"]: row for row in map(json.loads, typed("list", "--json").stdout.splitlines())}
    assert (rows["gpu_hot"]["when"], rows["gpu_hot"]["pack"], rows["gpu_hot"]["line"]) == (["temperature_celsius >= 70"], str(pack), 1)
    assert "gpu_remap_pending" not in rows
    assert len(typed("list", "--wide").stdout.splitlines()) == len(rows) + 1


def test_a_bad_pack_stops_no_server_and_is_told(pack):
    pack.write_text("[[rule")
    found = plugin_wiring.detectors(Config(detectors={"metric_rules": {"packs": [str(pack)]}}))
    assert [problem.partition(": ")[0] for problem in plugin_wiring.rule_problems(found)] == [f"{pack}:1"]


def test_the_pack_that_the_documentation_shows_does_what_it_says(pack):
    text = (Path(__file__).parents[4] / "docs" / "rules.md").read_text()
    pack.write_text(text.partition("```toml\n")[2].partition("```")[0])
    assert typed("check", pack).stdout == f"{pack} is fine: 2 rules, 1 in the place of one of this release, 1 switched off\n"
    assert typed("test", pack).stdout == "2 rules, 5 examples, 0 of them came out otherwise\n"


def test_of_a_thousand_mistakes_the_first_are_told_and_the_others_counted(pack):
    pack.write_text("[[rule]]\nx = 1\n" * 100)
    told = plugin_wiring.rule_problems(plugin_wiring.detectors(Config(detectors={"metric_rules": {"packs": [str(pack)]}})))
    assert (len(told), told[-1]) == (21, "and 80 further mistakes in packs of rules")
