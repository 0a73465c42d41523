"""Which incidents want a test of their paths: once each, once a minute for a job, in every mode; and nothing else is done differently for it."""

import pytest

from eagle_eye.ledger import Ledger
from eagle_eye.types import Entity, Kind, Mode, Severity
from fakes.world import World
from remediation.engine.path_test_requests import ATTEMPTS, EVERY_S, PathTestRequest
from remediation.policy.engine_settings import EngineSettings

NODE_B = Entity(kind=Kind.NODE, name="node-b")


def due(world: World) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(each.tests, each.suspects) for each in world.engine.path_tests.due()]


def world_of(ledger: Ledger, mode: Mode = Mode.OBSERVE, **more: object) -> World:
    return World(ledger=ledger, policy=EngineSettings(mode=mode, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_network_error_is_tested_once_in_every_mode(ledger: Ledger, mode: Mode) -> None:
    world = world_of(ledger, mode)
    assert due(world) == []
    world.find("network error", severity=Severity.SEV3)
    (request,) = world.engine.path_tests.due()
    assert (request.job, request.incident, request.tests) == (world.job.name, "i1", ("network.tested",))
    world.engine.path_tests.answered(request)
    world.clock.advance(2 * EVERY_S)
    assert due(world) == []


def test_the_accused_node_is_tested_by_the_others(ledger: Ledger) -> None:
    world = world_of(ledger)
    world.find("node lost", NODE_B, severity=Severity.SEV1)
    assert due(world) == [(("network.tested",), ("node-b",))]


def test_twin_what_no_network_or_storage_can_have_done_is_not_tested(ledger: Ledger) -> None:
    world = world_of(ledger)
    world.find("worker killed", NODE_B)
    world.find("collective mismatch", name="i2")
    assert due(world) == []


def test_twin_a_job_on_one_node_has_no_network_to_test(ledger: Ledger) -> None:
    world = World(ledger=ledger, policy=EngineSettings(), nodes=("node-a",))
    world.find("network error", severity=Severity.SEV3)
    assert due(world) == []
    world.find("job stalled", name="i2")
    assert due(world) == [(("storage.tested",), ())]


def test_one_test_a_minute_for_a_job_however_many_incidents_it_has(ledger: Ledger) -> None:
    world = world_of(ledger)
    world.find("network error", severity=Severity.SEV3)
    world.find("storage slow", name="i2", severity=Severity.INFO)
    (request,) = world.engine.path_tests.due()
    world.engine.path_tests.answered(request)
    assert due(world) == []
    world.clock.advance(EVERY_S)
    assert due(world) == [(("storage.tested",), ())]


def test_a_coordinator_that_cannot_be_reached_is_not_asked_for_ever(ledger: Ledger) -> None:
    world = world_of(ledger)
    world.find("network error", severity=Severity.SEV3)
    assert [len(world.engine.path_tests.due()) for _ in range(ATTEMPTS + 2)] == [1] * ATTEMPTS + [0, 0]


def test_it_can_be_switched_off_and_an_incident_that_is_over_is_not_tested(ledger: Ledger) -> None:
    off = world_of(ledger, path_tests=False)
    off.find("network error", severity=Severity.SEV3)
    assert due(off) == []
    over = world_of(ledger)
    over.find("network error", severity=Severity.SEV3, name="i3", active=False)
    assert due(over) == []


def test_a_request_has_the_same_id_for_the_same_incident() -> None:
    def request(incident: str) -> str:
        return PathTestRequest(job="t/n/r", incident=incident, tests=(), suspects=()).id

    assert request("i1") == request("i1") != request("i2")
