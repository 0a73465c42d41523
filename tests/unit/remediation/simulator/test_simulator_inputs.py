"""What the simulator is given: traces from files and seeds, tasks, policies; and what it says of those that cannot be."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.planner.simulator_unicron import split_by_size, split_by_weight, split_equally
from eagle_eye.errors import ConfigError
from remediation.simulator import job_mix, recovery_policy, trace_generators
from remediation.simulator.fault_trace import FaultKind, FaultSymptom, TraceEvent, read_trace

HEADING = "timestamp_s,event,node_id\n"


def written(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_is_a_life(tmp_path):
    text = HEADING + "10,add,a\n10,add,b\n20,remove,a\n30,sev3,b\n40,add,c\n50,add,d\n"
    trace = read_trace([written(tmp_path, text)])
    assert (trace.name, trace.nodes, trace.missing, trace.duration_s) == ("t", 3, (2,), 40.0)
    assert [(each.time_s, each.kind, each.nodes) for each in trace.events] == [
        (10, FaultKind.LOST, (0,)), (20, FaultKind.TRANSIENT, (1,)), (30, FaultKind.JOINED, (0,)), (40, FaultKind.JOINED, (2,)),
    ]  # fmt: skip


def test_two_files_are_one_life(tmp_path):
    hard = written(tmp_path, HEADING + "0,add,a\n0,add,b\n50,remove,a\n")
    soft = written(tmp_path, "timestamp_s,event,node_id,detail\n20,sev2,a,hang\n60,slow,b,0.5\n70,healthy,b,\n", "soft.csv")
    trace = read_trace([hard, soft])
    assert trace.events[0] == TraceEvent(20, FaultKind.RESTART, (0,), FaultSymptom.HANG)
    assert trace.events[2].speed == 0.5
    assert trace.node_mtbf_s == 2 * 70


def test_what_would_happen_to_a_node_that_is_out_does_not(tmp_path):
    text = HEADING + "0,add,a\n0,add,b\n10,remove,a\n20,sev2,a\n30,sev2,b\n"
    assert [each.nodes for each in read_trace([written(tmp_path, text)]).events] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: the heading"),
        ("time,what\n", "line 1: the heading"),
        (HEADING, "has no event"),
        (HEADING + "0,add,a\n10,rem", "line 3: 2 fields"),
        (HEADING + "0,add,a\n10,rem,a\n", "line 3: event is 'rem'"),
        (HEADING + "0,add,a\n-1,remove,a\n", "line 3: timestamp_s is '-1'"),
        (HEADING + "0,add,a\nnan,remove,a\n", "line 3: timestamp_s is 'nan'"),
        (HEADING + "5,add,a\n4,remove,a\n", "line 3: time 4 comes after 5"),
        (HEADING + "0,add,a\n1,add,a\n", "line 3: node 'a' is added, but it is there"),
        (HEADING + "0,add,a\n1,remove,b\n", "line 3: event remove of node 'b', which is not there"),
        (HEADING + "0,add,a\n1,sev2,b\n", "line 3: event sev2 of node 'b', which is not there"),
        (HEADING + "0,add,a\n1,remove,\n", "line 3: node_id is empty"),
        (HEADING + "0,add,a\n1,slow,a,2\n", "line 3: detail is '2'"),
        (HEADING + "0,add,a\n1,remove,a,gone\n", "line 3: detail is 'gone'"),
    ],
)
def test_a_torn_or_impossible_file_is_refused_with_its_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said) as error:
        read_trace([written(tmp_path, text)])
    assert "t.csv" in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("nothing.csv", "binary.csv"):
        with pytest.raises(ConfigError, match="cannot be read as a trace"):
            read_trace([tmp_path / name])


@pytest.mark.parametrize(("name", "hard", "soft", "days"), [("trace-a", 10, 33, 56), ("trace-b", 26, 80, 7)])
def test_unicrons_traces_have_its_counts_whatever_the_seed(name, hard, soft, days):
    for seed in range(5):
        trace = trace_generators.generate(name, seed)
        assert (trace.count(FaultKind.LOST), trace.count(FaultKind.RESTART, FaultKind.TRANSIENT), trace.duration_s) == (hard, soft, days * 86_400)
        assert list(trace.events) == sorted(trace.events, key=lambda each: each.time_s)
    assert trace_generators.generate(name, 1) == trace_generators.generate(name, 1) != trace_generators.generate(name, 2)


def test_llama_3_comes_at_its_rate_and_in_its_mix():
    trace = trace_generators.generate("llama3", 7, nodes=2048, days=540)
    faults = trace.count(FaultKind.LOST, FaultKind.RESTART, FaultKind.TRANSIENT, FaultKind.SLOW)
    assert faults == pytest.approx(4190, rel=0.06)
    assert trace.count(FaultKind.SLOW) == pytest.approx(60, abs=30)
    assert trace.count(FaultKind.RESTART) == pytest.approx(560, abs=90)


def test_a_switch_takes_all_its_nodes_at_once_and_gives_them_back():
    trace = trace_generators.generate("switches", 3, nodes=640, days=3650)
    lost = [each for each in trace.events if each.kind is FaultKind.LOST]
    assert {len(each.nodes) for each in lost} == {trace_generators.SWITCH_NODES}
    assert sum(each.kind is FaultKind.JOINED for each in trace.events) == pytest.approx(len(lost), abs=1)


def test_nothing_happens_to_a_node_that_is_out():
    for name in trace_generators.GENERATORS:
        out: set[int] = set()
        if "+" in name:
            continue  # two lives joined may overlap; the simulation counts outages
        for each in trace_generators.generate(name, 2, nodes=64, days=60).events:
            if each.kind is FaultKind.JOINED:
                out -= set(each.nodes)
            elif each.kind is not FaultKind.HEALTHY:
                assert not out & set(each.nodes)
            if each.kind is FaultKind.LOST:
                out |= set(each.nodes)


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="no trace is called 'x'; there are trace-a"):
        trace_generators.generate("x", 0)
    with pytest.raises(ConfigError, match="no policy is called 'x'; there are megatron"):
        recovery_policy.load_policy("x")
    with pytest.raises(ConfigError, match="has no part 'x'; it has in_band_detection"):
        recovery_policy.load_policy("unicron").without("x")
    with pytest.raises(ConfigError, match="one of eight, mix1"):
        job_mix.read_job_mix("x", 8, 8)
    with pytest.raises(ConfigError, match="nodes is -1"):
        trace_generators.generate("llama3", 0, nodes=-1)


def test_every_constant_of_every_policy_names_its_source():
    for name in recovery_policy.policy_names():
        for constant, origin in recovery_policy.load_policy(name).origins.items():
            assert len(origin.source) > 5, (name, constant)
        assert recovery_policy.load_policy(name).title


def test_a_part_changes_something_and_costs_something():
    for name in recovery_policy.policy_names():
        whole = recovery_policy.load_policy(name)
        for part in whole.parts:
            assert whole.without(part).costs != whole.costs, (name, part)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"\ntask = []\n', r"there is no \[\[task\]\]"),
        ('name = "x"\n[[task]]\nname = "a"\nmodel = "7b"\nweight = -1.0\n', "task 'a': weight is -1.0"),
        ('name = "x"\n[[task]]\nname = "a"\nmodel = "9b"\n', "task 'a': model is '9b'"),
        ('name = "x"\n[[task]]\nname = "a"\nmodel = "7b"\nminimum_nodes = 9\n', "task 'a': it needs 9 nodes and may have 8"),
        ('name = "x"\n[[task]]\nname = "a"\nmodel = "7b"\nwait = 1\n', r"unknown field `wait` - at `\$.task\[0\]`"),
        ('name = "x"\n[[task]\n', "line 2"),
    ],
)
def test_tasks_that_cannot_be_are_refused_with_their_field(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        job_mix.read_job_mix(written(tmp_path, text, "tasks.toml"), 8, 8)


def test_throughput_is_as_measured_and_nothing_where_it_was_not_run():
    rates = job_mix.throughput_row(job_mix.ModelThroughput(points=((16, 100.0), (32, 80.0))), 8, 8)
    assert rates[1] == 0.0
    assert rates[[2, 4]].tolist() == [16 * 100e12, 32 * 80e12]
    assert rates[8] == pytest.approx(64 * 80e12 * job_mix.BEYOND)


def test_unequal_pipelines_use_what_whole_replicas_leave_over():
    rates = np.arange(41) * 1.0
    whole, spread = job_mix.whole_replicas(rates, 8), job_mix.unequal_pipelines(rates, 8, 32)
    assert (spread >= whole - 1e-9).all()
    assert spread[39] > whole[39] + 4
    assert (spread <= rates + 1e-9).all()


def test_the_allocations_without_a_plan():
    jobs = job_mix.read_job_mix("mix4", 16, 8)
    assert split_equally(jobs, 12) == [2, 2, 2, 2, 2, 2]
    assert sum(split_by_weight(jobs, 16)) <= 16
    assert split_by_size(jobs, 16, [1, 1, 7, 7, 13, 13])[0] < split_by_size(jobs, 16, [1, 1, 7, 7, 13, 13])[5]
