"""What is put together from the layouts of all jobs."""

from msgspec import structs

from eagle_eye.config import NodesConfig, TopologyConfig
from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.types import JobSnapshot, NodePlace
from fakes.sample_plan import NOW, layout
from remediation.engine.cluster_view import ClusterView
from remediation.engine.job_state import JobState


def a_job(name: str, nodes: tuple[str, ...], seen: float = NOW, over: bool = False) -> JobState:
    job = JobState(name=name, layout=layout(name, nodes), epoch=3, over=over)
    job.telemetry.update(JobSnapshot(job=name, generation=1, number=1, time=seen, tick=True))
    return job


def test_switches_are_those_of_the_first_table_that_names_a_node():
    tables = [("rack-1-9", "spine"), ("rack-1-[1-8],rack-1-*", "leaf-1"), ("rack-2-[1-64]", "leaf-2")]
    around = ClusterView(ConfiguredPlaces(TopologyConfig(nodes=tuple(NodesConfig(hosts=hosts, switch=switch) for hosts, switch in tables))))
    jobs = [a_job("t/a/r", ("rack-1-1", "rack-2-1")), a_job("t/b/r", ("rack-1-9", "elsewhere"))]
    assert around.topology(jobs).nodes == {"rack-1-1": "leaf-1", "rack-2-1": "leaf-2", "rack-1-9": "spine", "elsewhere": ""}


def test_what_agents_say_of_their_nodes_counts_after_the_configuration_and_is_seen_when_it_comes():
    around = ClusterView(ConfiguredPlaces(TopologyConfig(nodes=(NodesConfig(hosts="a", switch="leaf-1"),))))
    job = a_job("t/a/r", ("a", "b"))
    assert around.topology([job]).nodes == {"a": "leaf-1", "b": ""}
    placed = structs.replace(job.layout, places={"a": NodePlace(switch="leaf-8"), "b": NodePlace(switch="leaf-2")})
    job.update(JobSnapshot(job="t/a/r", generation=1, number=2, time=NOW, tick=True, layout=placed), calm=True)
    assert around.topology([job]).nodes == {"a": "leaf-1", "b": "leaf-2"}


def test_a_new_epoch_of_a_job_is_seen():
    around, job = ClusterView(), a_job("t/a/r", ("a", "b"))
    assert set(around.topology([job]).nodes) == {"a", "b"}
    job.layout = layout("t/a/r", ("a", "c"))
    assert set(around.topology([job]).nodes) == {"a", "b"}, "the same epoch is the same layout"
    job.layout = structs.replace(job.layout, epoch=4)
    assert set(around.topology([job]).nodes) == {"a", "c"}


def test_a_node_is_heard_if_one_of_its_jobs_is_and_a_job_that_is_over_tells_nothing():
    around = ClusterView()
    jobs = [a_job("t/a/r", ("a", "b"), seen=NOW - 60), a_job("t/b/r", ("b", "c")), a_job("t/c/r", ("d",), over=True)]
    told = around.telemetry(jobs)
    assert {node: news.heard for node, news in told.items()} == {"a": NOW - 60, "b": NOW, "c": NOW}
