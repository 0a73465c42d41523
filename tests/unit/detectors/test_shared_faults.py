"""Ports that go down at one switch, and faults of several jobs: the narrowest part that explains them, and nobody where it is a coincidence."""

from collections.abc import Iterable

import msgspec
import pytest

from detectors.diagnosis import Diagnosis
from eagle_eye.types import Entity, Evidence, Finding, Incident, Kind, Severity, Topology

NOW = 1_700_000_000.0
A, B, OTHER = "team/a/run", "team/b/run", "stranger/c/run"
SWITCHES = {"n0": "leaf-0", "n1": "leaf-0", "n2": "leaf-1", "n3": "leaf-1", "n4": "leaf-1", "n5": "leaf-2", "n6": "leaf-2"}


def topology(**jobs: str) -> Topology:
    """Job → its nodes, with spaces between; one worker on each."""
    names = {"a": A, "b": B, "c": OTHER}
    placed = {names[job]: tuple(f"{job}/{node}/0" for node in nodes.split()) for job, nodes in jobs.items()}
    return Topology(nodes=SWITCHES, workers={worker: worker.split("/")[1] for workers in placed.values() for worker in workers}, jobs=placed)


def finding(kind: str, entity: Entity, job: str = A, since: float = NOW, status: str = "", score: float = 0.9) -> Finding:
    line = Evidence(text=f"{kind} of {entity.name}", status=status)
    return Finding(id=f"{job}/{kind}/{entity.name}", revision=1, detector="d", digest="x", job=job, entity=entity, kind=kind, score=score, since=since, time=since + 1.0, evidence=(line,), active=True)


def port(node: str, job: str = A, since: float = NOW) -> Finding:
    return finding("link.down", Entity(kind=Kind.LINK, name=f"{node}/mlx5_0"), job, since)


def cry(node: str, job: str = A, since: float = NOW + 1.0) -> Finding:
    worker = Entity(kind=Kind.WORKER, name=f"{job.split('/')[1]}/{node}/0")
    return finding("worker.exception", worker, job, since, "connection refused or reset", 0.5)


def lost(node: str, job: str = A, since: float = NOW) -> Finding:
    return finding("node.lost", Entity(kind=Kind.NODE, name=node), job, since)


def hung(node: str, job: str, since: float = NOW) -> Finding:
    return finding("storage.hung", Entity(kind=Kind.MOUNT, name=f"{node}/mnt/data"), job, since)


def diagnosed(places: Topology, *rounds: Iterable[Finding]) -> list[Incident]:
    """The newest revision of each."""
    known: dict[str, Incident] = {}
    for findings in rounds:
        present = tuple(each for each in known.values() if each.active)
        for incident in Diagnosis().diagnose(present, list(findings), places):
            assert incident.revision >= (known[incident.id].revision if incident.id in known else 0)
            known[incident.id] = incident
    return [each for each in known.values() if not each.part_of]


def told(incidents: list[Incident]) -> list[tuple[str, list[str], Severity]]:
    return [(each.cause, [culprit.entity.name for culprit in each.culprits], each.severity) for each in incidents]


ONE = topology(a="n0 n1 n2 n3 n4")


def test_ports_of_all_nodes_at_a_switch_name_the_switch() -> None:
    assert told(diagnosed(ONE, [port("n2"), port("n3")], [port("n4", since=NOW + 2.0)])) == [("switch down", ["leaf-1"], Severity.SEV3)]


def test_twin_ports_of_some_nodes_at_a_switch_are_ports() -> None:
    assert told(diagnosed(ONE, [port("n2"), port("n3")])) == [("link down", [], Severity.INFO)]


def test_twin_ports_at_two_switches_are_ports() -> None:
    assert told(diagnosed(ONE, [port(node) for node in ("n0", "n1", "n2", "n3", "n4")])) == [("link down", [], Severity.INFO)]


def test_twin_a_job_all_of_which_is_at_one_switch_cannot_tell() -> None:
    assert told(diagnosed(topology(a="n2 n3 n4"), [port(node) for node in ("n2", "n3", "n4")])) == [("link down", [], Severity.INFO)]


def test_connections_that_break_after_a_port_went_down_name_the_port_and_one_incident_is_told() -> None:
    assert told(diagnosed(ONE, [port("n3")], [cry("n0"), cry("n2")])) == [("network error", ["n3/mlx5_0"], Severity.SEV3)]
    assert told(diagnosed(ONE, [cry("n0"), cry("n2")], [port("n3", since=NOW + 3.0)])) == [("network error", ["n3/mlx5_0"], Severity.SEV3)]


def test_connections_that_break_at_a_switch_name_the_switch() -> None:
    assert told(diagnosed(ONE, [port("n2"), port("n3"), port("n4")], [cry("n0")])) == [("network error", ["leaf-1"], Severity.SEV3)]


def test_twin_a_port_that_went_down_long_before_broke_nothing() -> None:
    found = diagnosed(ONE, [port("n3", since=NOW - 100.0)], [cry("n0"), cry("n2")])
    assert sorted(told(found)) == [("link down", [], Severity.INFO), ("network error", [], Severity.SEV3)]


def test_twin_a_port_that_goes_down_while_the_job_stands_broke_nothing() -> None:
    assert told(diagnosed(ONE, [cry("n0"), cry("n2")], [port("n3", since=NOW + 30.0)])) == [("network error", [], Severity.SEV3)]


def test_twin_a_worker_that_was_killed_is_at_fault_whatever_port_is_down() -> None:
    killed = finding("worker.exited", Entity(kind=Kind.WORKER, name="a/n1/0"), A, NOW + 0.5, "killed", 1.0)
    found = diagnosed(ONE, [port("n3")], [cry("n0")], [killed])
    assert ("worker killed", ["a/n1/0"], Severity.SEV2) in told(found)
    assert not any(culprit.entity.kind is Kind.LINK for each in found for culprit in each.culprits)


TWO = topology(a="n0 n1 n2", b="n2 n3 n5 n6")


def test_a_switch_of_two_jobs_is_one_fault_with_two_victims() -> None:
    places = topology(a="n0 n2", b="n3 n4 n5")
    found = diagnosed(places, [port("n3", B), port("n4", B)], [port("n2", A), port("n0", A)])
    assert all(not each.victims for each in found), "one port of the other job does not show a switch"
    places = topology(a="n0 n2 n3", b="n3 n4 n5")
    found = diagnosed(places, [port("n3", B), port("n4", B)], [port("n2", A, NOW + 3.0), port("n3", A, NOW + 3.0)])
    assert [(each.job, each.cause, each.victims) for each in found] == [(B, "switch down", (A, B)), (A, "switch down", (A, B))]
    assert all(each.active and not each.part_of for each in found), "each job is repaired by itself"


def test_a_node_of_two_jobs_that_is_lost_is_one_fault() -> None:
    found = diagnosed(TWO, [lost("n2", A)], [lost("n2", B, NOW + 2.0)])
    assert [each.victims for each in found] == [(A, B), (A, B)]
    assert all("one fault with 2 victims" in each.evidence[-1].text for each in found)


def test_the_server_of_a_mount_is_shared_by_its_place() -> None:
    found = diagnosed(TWO, [hung("n0", A), hung("n6", B, NOW + 5.0)])
    assert [each.victims for each in found] == [(A, B), (A, B)]


def test_twin_two_nodes_that_are_lost_at_once_are_two_faults() -> None:
    assert not any(each.victims for each in diagnosed(TWO, [lost("n0", A), lost("n6", B)]))


def test_twin_a_node_that_is_lost_to_each_job_at_another_time_is_two_faults() -> None:
    assert not any(each.victims for each in diagnosed(TWO, [lost("n2", A)], [lost("n2", B, NOW + 60.0)]))


def test_another_tenants_job_is_counted_and_not_named() -> None:
    found = diagnosed(topology(a="n0 n2", c="n2 n5"), [lost("n2", A), lost("n2", OTHER)])
    assert sorted(each.victims for each in found) == [("a job of another tenant", OTHER), ("a job of another tenant", A)]
    assert not any(A in msgspec.json.encode(each).decode() for each in found if each.job == OTHER)


def test_what_was_told_of_victims_stays_when_the_incident_is_revised() -> None:
    found = diagnosed(TWO, [lost("n2", A), lost("n2", B)], [finding("worker.exited", Entity(kind=Kind.WORKER, name="a/n2/0"), A, NOW + 1.0, "killed", 1.0)])
    assert {each.victims for each in found if each.cause == "node lost"} == {(A, B)}


MANY = 300
"""More than an incident keeps the parts of."""
LARGE = Topology(workers={f"a/m{number}/0": f"m{number}" for number in range(MANY)}, jobs={A: tuple(f"a/m{number}/0" for number in range(MANY))})


def ended(number: int, status: str, code: float) -> Finding:
    found = finding("worker.exited", Entity(kind=Kind.WORKER, name=f"a/m{number}/0"), A, NOW + 0.001 * number, status, 1.0)
    return msgspec.structs.replace(found, evidence=(msgspec.structs.replace(found.evidence[0], value=code),))


@pytest.mark.parametrize(("status", "code", "cause"), [("exited abnormally", 2.0, "worker exited"), ("killed", -9.0, "worker killed")])
def test_a_job_too_large_to_keep_all_that_ended_alike_accuses_nobody(status: str, code: float, cause: str) -> None:
    (incident,) = diagnosed(LARGE, [ended(number, status, code) for number in range(MANY)])
    assert (incident.cause, incident.culprits) == (cause, ())


@pytest.mark.parametrize(("status", "code", "cause"), [("exited abnormally", 3.0, "worker exited"), ("killed", -9.0, "worker killed")])
def test_twin_one_that_ended_otherwise_than_its_victims_is_named(status: str, code: float, cause: str) -> None:
    victims = [ended(number, "exited abnormally", 1.0) for number in range(1, MANY)]
    (incident,) = diagnosed(LARGE, [ended(0, status, code), *victims])
    assert (incident.cause, [culprit.entity.name for culprit in incident.culprits]) == (cause, ["a/m0/0"])
