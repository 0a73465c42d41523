"""What is said of the entities that an incident accuses: earlier incidents, and whether they came back from a repair."""

import doctest
from typing import Any

import msgspec

from eagle_eye import durations
from eagle_eye.ledger import IncidentRecord, Ledger, entity_history
from eagle_eye.ledger.entity_history import DAY_S, entity_histories, history_text
from eagle_eye.topology import ON_GPU
from eagle_eye.types import Culprit, Entity, Evidence, Finding, IncidentState, Kind
from fakes.sample_values import a_finding, an_incident

NOW = 40 * DAY_S
ECC = "gpu memory error"


def saved(ledger: Ledger, name: str, days_before: float, kind: Kind, part: str, cause: str = ECC, **fields: Any) -> IncidentRecord:
    culprit = Culprit(entity=Entity(kind=kind, name=part), confidence=0.9)
    opened = NOW - days_before * DAY_S
    ledger.save_incident(an_incident(id=name, cause=cause, culprits=(culprit,), since=opened, time=opened, **fields), IncidentState.OPEN)
    record = ledger.incident_record(name)
    assert record is not None
    return record


def sentences(ledger: Ledger, record: IncidentRecord) -> list[str]:
    return [history_text(history, record) for history in entity_histories(ledger, record)]


def test_the_examples_in_the_texts_are_true():
    for module in (entity_history, durations):
        assert doctest.testmod(module).failed == 0


def test_the_third_incident_of_a_node_in_a_month_says_so_over_jobs_and_what_it_holds(ledger: Ledger) -> None:
    saved(ledger, "other-job", 9, Kind.NODE, "node-a", job="other/bert/7")
    saved(ledger, "worker", 2, Kind.WORKER, "run1/node-a/3", "worker killed")
    assert ledger.cordon("node-a", "tenant/gpt/run1", "plan-1", NOW - 8 * DAY_S)
    assert ledger.release("node-a", "ann", NOW - 3 * DAY_S)
    record = saved(ledger, "now", 0, Kind.LINK, "node-a/mlx5_0", "link flaps")
    assert sentences(ledger, record) == [
        f"node node-a: 3rd incident in 30 days, the last one 2d before; so far 1 worker killed, 1 {ECC}; back from an eviction for 3d, released by ann"
    ]


def test_a_gpu_is_known_by_its_own_name_wherever_it_is(ledger: Ledger) -> None:
    saved(ledger, "before", 1, Kind.GPU, "GPU-1")
    saved(ledger, "another", 1, Kind.GPU, "GPU-11")
    record = saved(ledger, "now", 0, Kind.GPU, "GPU-1")
    assert sentences(ledger, record) == [f"gpu GPU-1: 2nd incident in 30 days, the last one 1d before; so far 1 {ECC}"]


def on_gpu(name: str, gpu: str) -> Finding:
    evidence = (Evidence(text="its parameters are others"), Evidence(text=f"it computes on GPU {gpu}", metric=f"{ON_GPU}{gpu}"))
    return msgspec.structs.replace(a_finding(), id=name, entity=Entity(kind=Kind.WORKER, name=name), evidence=evidence)


def test_the_gpu_on_which_an_accused_worker_computed_is_known_on_whichever_node_it_is(ledger: Ledger) -> None:
    corrupt = "silent corruption"
    saved(ledger, "first", 9, Kind.GPU, "GPU-1")
    saved(ledger, "second", 2, Kind.WORKER, "run1/node-a/3", corrupt, parts=(on_gpu("run1/node-a/3", "GPU-1"), on_gpu("run1/node-a/4", "GPU-2")))
    saved(ledger, "nobody", 1, Kind.JOB, "tenant/gpt/run1", corrupt, parts=(on_gpu("run1/node-a/3", "GPU-1"),))
    record = saved(ledger, "now", 0, Kind.WORKER, "run9/node-b/0", corrupt, parts=(on_gpu("run9/node-b/0", "GPU-1"),))
    assert sentences(ledger, record) == [f"gpu GPU-1: 3rd incident in 30 days, the last one 2d before; so far 1 {corrupt}, 1 {ECC}"]
    other = saved(ledger, "other", 0, Kind.WORKER, "run9/node-b/1", corrupt, parts=(on_gpu("run9/node-b/1", "GPU-2"),))
    assert [each for each in sentences(ledger, other) if each.startswith("gpu")] == [], "nobody was accused of what its finding said"


def test_twin_what_is_older_or_later_of_a_namesake_or_explained_by_another_is_no_history(ledger: Ledger) -> None:
    saved(ledger, "old", 31, Kind.NODE, "node-a")
    saved(ledger, "namesake", 1, Kind.NODE, "node-a1")
    saved(ledger, "job", 1, Kind.JOB, "node-a")
    saved(ledger, "part", 1, Kind.NODE, "node-a", part_of="namesake")
    saved(ledger, "wildcard", 1, Kind.NODE, "node_a")
    record = saved(ledger, "now", 0.5, Kind.NODE, "node-a")
    saved(ledger, "later", 0, Kind.NODE, "node-a")
    assert ledger.cordon("node-a", "tenant/gpt/run1", "plan-1", NOW - DAY_S)
    assert sentences(ledger, record) == []
    assert ledger.release("node-a", "ann", NOW), "it was not back yet"
    assert sentences(ledger, record) == []


def test_a_job_or_nobody_has_no_history(ledger: Ledger) -> None:
    saved(ledger, "before", 1, Kind.JOB, "tenant/gpt/run1")
    assert sentences(ledger, saved(ledger, "now", 0, Kind.JOB, "tenant/gpt/run1")) == []
