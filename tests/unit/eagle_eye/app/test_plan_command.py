"""`eagle-eye plan`: the plan of a cluster file, what an event does to it, and errors that name line and field."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.app.cli import main
from eagle_eye.app.plan_printing import print_live
from eagle_eye.errors import ConfigError
from eagle_eye.ledger import JobRecord
from eagle_eye.types import Demand, Layout, Mode, PrecomputedPlan
from remediation.planner.files.cluster_file import ClusterFile
from remediation.planner.files.plan_report import make_report
from remediation.planner.files.toml_lines import TomlLines, parsed_path

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "cluster.toml"


def plan(*arguments: str, file: Path = EXAMPLE):
    return CliRunner().invoke(main, ["plan", str(file), *arguments])


def record(*arguments: str, file: Path = EXAMPLE) -> dict:
    done = plan("--json", *arguments, file=file)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.fixture
def changed(tmp_path):
    def write(*words: str) -> Path:
        """Old, new, old, new, ..."""
        text = EXAMPLE.read_text()
        for old, new in zip(words[::2], words[1::2], strict=True):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "cluster.toml"
        path.write_text(text)
        return path

    return write


def test_the_example_is_planned_with_reasons_and_uses_every_node_but_the_spare():
    told = record()
    assert sum(job["nodes"] for job in told["jobs"]) * 8 + told["idle_gpus"] == 15 * 8
    assert {job["name"] for job in told["jobs"]} == {"gpt-7b", "gpt-13b"}
    assert all(job["flops"] > 0 and job["source"] == "modelled" and job["why"] for job in told["jobs"])
    assert "save every" in told["jobs"][0]["checkpoint"]
    assert told["nodes"]["node4"] == "gpt-7b"
    assert told["nodes"]["node5"] == "gpt-13b"
    assert told["nodes"]["node16"] == ""


def test_a_lost_node_is_replaced_by_the_spare_and_every_other_way_has_its_reason():
    told = record("--what-if", "lose:node3")
    assert set(told["decisions"]) == {"gpt-7b"}
    decision = told["decisions"]["gpt-7b"]
    assert decision["best"] == "take a spare"
    assert [one["waf_s"] for one in decision["options"]] == sorted(one["waf_s"] for one in decision["options"])
    assert len(decision["why_rejected"]) == 7
    shown = plan("--what-if", "lose:node3").output
    assert "take a spare" in shown
    assert "wait for repair: Costs" in " ".join(shown.split())


def test_a_slow_node_without_spares_is_balanced_or_evicted(changed):
    told = record("--what-if", "slow:node5:0.7", file=changed("nodes = 11\n", "nodes = 12\n", "spare_nodes = 1 ", "spare_nodes = 0 "))
    decision = told["decisions"]["gpt-13b"]
    flops = {one["kind"]: one["flops"] for one in decision["options"]}
    assert flops["rebalance micro-batches"] > flops["do nothing"]
    assert decision["best"] in ("rebalance micro-batches", "re-layout")
    assert "0 spares are free" in decision["why_rejected"]["take a spare"]


def test_jobs_finish_are_launched_and_nodes_join():
    finished = record("--what-if", "finish:gpt-7b")
    assert [job["name"] for job in finished["jobs"]] == ["gpt-13b"]
    assert finished["jobs"][0]["nodes"] > 11
    assert record("--what-if", "lose:node3", "--what-if", "finish:gpt-7b")["decisions"] == {}
    launched = record("--what-if", "launch:gpt-1.3b", "--what-if", "join:node17", "--what-if", "join:node18")
    assert {job["name"] for job in launched["jobs"]} == {"gpt-7b", "gpt-13b", "gpt-1.3b"}
    assert sum(job["nodes"] for job in launched["jobs"]) * 8 + launched["idle_gpus"] == 17 * 8


def test_what_was_measured_wins_over_the_model(changed):
    path = changed('# measured = "measured.csv"', 'measured = "measured.csv"')
    (path.parent / "measured.csv").write_text("task,gpus,flops\ngpt-7b,32,5e15\n")
    job = record(file=path)["jobs"][0]
    assert (job["nodes"], job["source"], job["flops"]) == (4, "measured", 5e15)
    (path.parent / "measured.csv").write_text("task,gpus,flops\ngpt-7b,32,5e15\ngpt-7b,x,1\n")
    assert "measured.csv, line 3: gpus is 'x'" in plan(file=path).output
    (path.parent / "measured.csv").write_text("task,gpus,flops,tensor,pipeline,data,micro_batch,recompute\ngpt-7b,32,2.5e15,2,1,16,2,full\n")
    calibration = record(file=path)["calibration"]
    assert calibration["measurements"] == 1
    assert calibration["coefficients"]["compute_share"] < record()["calibration"]["coefficients"]["compute_share"]
    assert "calibrated on 1 measured layouts" in plan(file=path).output


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("nodes = 16", "nodes = -16", 5, "cluster.nodes: Expected `int` >= 1"),
        ("nodes = 4 ", "nodes = -4 ", 16, "job[0].nodes: Expected `int` >= 0"),
        ("weight = 2.0", "weight = -2.0", 17, "job[0].weight: Expected `float` >= 0"),
        ("hidden = 5120", "hiden = 5120", 41, "job[1].model.hiden: no such key"),
        ("layers = 40", 'layers = "many"', 40, "job[1].model.layers: Expected `int`, got `str`"),
        ("heads = 40", "heads = 37", 39, "no multiple of the 37 heads"),
        ("layers = 40", "layers = 4000", 32, "'gpt-13b' cannot fit"),
        ("nodes = 16", "nodes = 14", 5, "the jobs have 15 nodes, but without spares there are 13"),
        ('gpu = "A800"', 'gpu = "A1"', 7, "no GPU is known as 'A1'"),
        ("gpt-13b", "gpt-7b", 32, "two jobs are called 'gpt-7b'"),
        ("queued = true", "queued = true\nnodes = 1", 48, "a queued job has none yet"),
        ("maximum_nodes = 4", "maximum_nodes = 0", 19, "Expected `int` >= 1"),
        ("minimum_nodes = 1", "minimum_nodes = 5", 19, "below minimum_nodes, 5"),
        ("spare_nodes = 1 ", "spare_nodes = 99 ", 9, "more than the 16 nodes"),
        ("nodes = 16", "nodes = = 16", 5, "Invalid value"),
        ("nodes = 16", "nodes = 99999999999999999999", 5, "cluster.nodes: Expected `int` <= 1000000"),
        ("weight = 2.0", "weight = inf", 17, "job[0].weight: Expected `float` <= 1000000000000.0"),
        ('# measured = "measured.csv"', 'measured = "none.csv"', 12, "cluster.measured: "),
    ],
)
def test_bad_input_is_refused_with_line_and_field(changed, old, new, line, message):
    done = plan(file=changed(old, new))
    assert done.exit_code == 1
    assert message in done.output
    assert f"line {line}" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("lose:node99", "they are node1 to node16"),
        ("join:node1", "one that is not there yet"),
        ("slow:node1:2", "above 0 and at most 1"),
        ("slow:node1", "no node is called"),
        ("explode:node1", "write lose:NODE"),
        ("finish:gpt", "the jobs are gpt-7b, gpt-13b, gpt-1.3b"),
        ("launch:gpt-7b", "under queue there are: gpt-1.3b"),
    ],
)
def test_an_event_that_cannot_be_says_what_can(event, message):
    done = plan("--what-if", event)
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())


def test_a_file_that_is_not_there():
    assert "cannot be read" in plan(file=Path("none.toml")).output
    with pytest.raises(ConfigError, match="is lost already"):
        make_report(ClusterFile(EXAMPLE), ["lose:node1", "lose:node1"])


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b"]), max_size=6))
def test_lines_of_keys_in_arrays_of_tables(names):
    lines = ["# a comment", "[top]", "key = 1"]
    wanted = {}
    for index, name in enumerate(names):
        count = names[:index].count(name)
        lines += [f"[[{name}]]", "x = 1", f"[{name}.inner]", "  y = [1,", "2]"]
        wanted[(name, count, "x")] = len(lines) - 3
        wanted[(name, count, "inner", "y")] = len(lines) - 1
    found = TomlLines("\n".join(lines))
    assert {path: found.line(path) for path in wanted} == wanted
    assert found.line(("top", "none")) == 2
    assert found.line(()) == 1
    assert parsed_path("$.job[0].model") == ("job", 0, "model")


def test_a_slow_node_is_evicted_for_a_spare_and_kept_where_it_is_worth_more(changed):
    told = record("--what-if", "slow:node5:0.5")
    assert [(one["node"], one["kept"]) for one in told["slow_nodes"]] == [("node5", False)]
    assert told["jobs"][1]["nodes"] == 11
    assert told["decisions"]["gpt-13b"]["best"] == "take a spare"
    full = changed("nodes = 11\n", "nodes = 12\n", "spare_nodes = 1 ", "spare_nodes = 0 ")
    healthy = record(file=full)
    kept = record("--what-if", "slow:node5:0.97", file=full)
    assert kept["slow_nodes"][0]["kept"]
    assert kept["jobs"][1]["nodes"] == 12
    assert 0.96 * healthy["jobs"][1]["flops"] < kept["jobs"][1]["flops"] < healthy["jobs"][1]["flops"]
    hardly = record("--what-if", "slow:node5:0.05", file=full)
    assert not hardly["slow_nodes"][0]["kept"]
    assert hardly["jobs"][1]["nodes"] == 11
    assert "node5 at 5% of its speed is evicted from gpt-13b" in " ".join(plan("--what-if", "slow:node5:0.05", file=full).output.split())


def test_the_plan_is_the_better_of_the_two_solved_apart(changed):
    """A single slow node: what is said to be gained is what two plans of other files say."""
    file = ClusterFile(changed("nodes = 11\n", "nodes = 12\n", "spare_nodes = 1 ", "spare_nodes = 0 ", "gpu_mtbf_hours = 50700", "gpu_mtbf_hours = 2000"))
    told = make_report(file, ["slow:node5:0.4"])
    gone = make_report(file, ["lose:node5"])
    assert not told.slow[0].kept
    assert told.allocation.workers == gone.allocation.workers  # a failure comes before the repair, so both look as far ahead


def test_of_several_slow_nodes_none_would_be_better_off_the_other_way(changed):
    """The spare goes where the plan sends it, not to the first job of the file."""
    told = record("--what-if", "slow:node5:0.7", "--what-if", "lose:node6", "--what-if", "slow:node1:0.95")
    assert {one["node"]: one["kept"] for one in told["slow_nodes"]} == {"node5": False, "node1": True}
    assert all(one["gain"] > 0 for one in told["slow_nodes"])
    assert told["decisions"]["gpt-7b"]["best"] == "do nothing"
    assert sum(job["nodes"] for job in told["jobs"]) == 14


LAYOUT = "[job.layout]\ntensor = 8\npipeline = 4\ndata = 1\nmicro_batch = 1\nrecompute = 'full'\n\n[job.model]\nlayers = 32"


def test_a_job_is_planned_from_the_layout_that_it_runs(changed):
    best = record()["jobs"][0]
    told = record(file=changed("[job.model]\nlayers = 32", LAYOUT, "weight = 2.0", "weight = 2.0\ntransition_s = 1e8"))["jobs"][0]
    assert told["layout"] == "tp 8 × pp 4 × dp 1, micro-batch 1, recompute full"
    assert told["flops"] < best["flops"]
    assert "would add" in told["why"]
    whole = record(file=changed("[job.model]\nlayers = 32", LAYOUT))
    changes = whole["jobs"][0]
    assert whole["value"] < record()["value"]  # to change costs time
    assert (changes["layout"], changes["flops"]) == (best["layout"], best["flops"])
    assert "changes its layout from tp 8 × pp 4 × dp 1" in changes["why"]
    lost = record("--what-if", "lose:node3", file=changed("[job.model]\nlayers = 32", LAYOUT))["decisions"]["gpt-7b"]
    assert "there are 1: none may be left" in lost["why_rejected"]["take a spare"]


def test_what_was_measured_on_as_many_gpus_is_what_the_layout_makes(changed):
    path = changed("[job.model]\nlayers = 32", LAYOUT, '# measured = "measured.csv"', 'measured = "measured.csv"')
    (path.parent / "measured.csv").write_text("task,gpus,flops,tensor,pipeline,data,micro_batch,recompute\ngpt-7b,32,4e15,8,4,1,1,full\ngpt-7b,32,4e15,8,2,2,1,full\n")
    told = record(file=path)["jobs"][0]
    assert (told["flops"], told["source"]) == (4e15, "measured")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data = 1", "data = 2", "line 24: job[0].layout: tp 8 × pp 4 × dp 2"),
        ("data = 1", "", "Object missing required field `data`"),
        ("'full'", "'some'", "line 29: job[0].layout.recompute: Invalid enum value 'some'"),
        ("pipeline = 4\ndata = 1", "pipeline = 1\ndata = 4\ninterleave = 40", "does not divide 32 layers"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(changed, old, new, message):
    done = plan(file=changed("[job.model]\nlayers = 32", LAYOUT.replace(old, new)))
    assert done.exit_code == 1
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("left", "said"),
    [({"t/a/1": 0}, "the job stops"), ({"t/a/1": 1, "t/b/1": 0}, "all jobs stop"), ({"t/a/1": 2}, "all jobs keep their remaining workers"),
     ({"t/a/1": 1, "t/b/1": 1}, "t/a/1 stops; all other jobs keep their remaining workers")],
)  # fmt: skip
def test_a_job_that_is_left_too_little_is_said_to_stop(capsys, left, said):
    layout = Layout(job="t/a/1", epoch=1, time=0.0, coordinator="n1", launchers={}, placements=())
    jobs = {
        name: JobRecord(
            layout=layout, address="", heal="in-place", budget_left=9,
            demand=Demand(declared={"n1": 3}, workers_per_node={"n1": 3}, workers_min=2 if name == "t/a/1" else 1),
        )
        for name in left
    }  # fmt: skip
    plan = PrecomputedPlan(id="s1", event="node lost", node="n1", mode=Mode.AUTO, epochs={}, made=0.0, expires=60.0, workers=left, waf_before=3.0)
    print_live([plan], jobs, {}, wide=True)
    assert f"if n1 is lost: {said}\n" in capsys.readouterr().out


@pytest.mark.parametrize("event", ["lose:node3", "slow:node5:0.05", "finish:gpt-7b"])
def test_a_report_fits_80_columns_and_breaks_no_word(monkeypatch, event):
    monkeypatch.setenv("COLUMNS", "80")
    shown = plan("--what-if", event).output
    assert max(map(len, shown.splitlines())) <= 80
    for text in ("modelled", "micro-batch 4," if event != "finish:gpt-7b" else "micro-batch"):
        assert text in shown
    wide = plan("--what-if", event, "--wide").output
    assert "tp 1 × pp 1 × dp " in wide
    assert ", recompute none\n" in wide
