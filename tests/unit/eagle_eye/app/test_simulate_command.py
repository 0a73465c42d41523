"""`eagle-eye simulate`: what it prints, what it writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_eye.app.cli import main

QUICK = ["simulate", "--seeds", "2", "--policy", "megatron", "--policy", "ours"]


def call(*arguments: str):
    return CliRunner().invoke(main, [*arguments])


def test_it_prints_the_best_first():
    result = call(*QUICK)
    assert result.exit_code == 0, result.output
    rows = [line.split()[0] for line in result.output.splitlines() if line.split() and line.split()[0] in ("ours", "megatron")]
    assert rows == ["ours", "megatron"]


def test_the_table_fits_80_columns_and_is_whole_with_wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    narrow = call(*QUICK).stdout.splitlines()
    assert max(map(len, narrow)) <= 80
    assert len(call(*QUICK, "--wide").stdout.splitlines()) == 4  # the trace, the titles, a line for each policy


def test_json_is_one_object_a_run_and_its_time_shares_sum():
    lines = [json.loads(line) for line in call(*QUICK, "--json").stdout.splitlines()]
    assert [(line["policy"], line["seed"]) for line in lines] == [("megatron", 0), ("megatron", 1), ("ours", 0), ("ours", 1)]
    for line in lines:
        assert sum(line["time_shares"].values()) == pytest.approx(1.0)
        assert line["waf_s"] == pytest.approx(sum(line["jobs"].values()))


def test_the_page_opens_without_a_network(tmp_path):
    page = tmp_path / "r.html"
    assert call(*QUICK, "--html", str(page)).exit_code == 0
    text = page.read_text()
    assert "<script src" not in text
    assert "WAF over time" in text
    assert "sub-healthy" in text
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_file_is_one_life_and_a_torn_one_names_its_line(tmp_path):
    trace: Path = tmp_path / "life.csv"
    trace.write_text("timestamp_s,event,node_id\n" + "".join(f"0,add,n{index}\n" for index in range(4)) + "500,remove,n1\n9000,add,n1\n")
    assert len(call(*QUICK, "--trace", str(trace), "--json").stdout.splitlines()) == 2
    trace.write_text(trace.read_text()[:-9])
    refused = call(*QUICK, "--trace", str(trace))
    assert refused.exit_code == 1
    assert "life.csv, line 7" in str(refused.exception) + refused.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "nobody"], "no policy is called 'nobody'"),
        (["--trace", "nothing"], "no trace is called 'nothing'"),
        (["--nodes", "-1"], "-1 is not in the range"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--spares", "-1"], "-1 is not in the range"),
        (["--without", "wings"], "none of these policies has that part"),
        (["--tasks", "nothing.toml"], "nothing.toml: cannot be read"),
        (["--html", "/nowhere/at/all.html", "--seeds", "1", "--policy", "ours"], "cannot be written"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(arguments, said):
    refused = call("simulate", *arguments)
    assert refused.exit_code != 0
    assert said in refused.output + str(refused.exception)


def test_parts_can_be_switched_off_alone():
    lines = call("simulate", "--seeds", "1", "--policy", "transom", "--ablation", "--json").stdout.splitlines()
    assert [json.loads(line)["policy"] for line in lines] == ["transom", "transom − eagle_eye", "transom − memory_checkpoints", "transom − warm_restart"]
    assert json.loads(call("simulate", "--seeds", "1", "--policy", "ours", "--without", "templates", "--json").stdout)["policy"] == "ours − templates"
