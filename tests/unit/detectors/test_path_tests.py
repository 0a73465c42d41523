"""What launchers' tests of the network and of storage prove, and that they join the incident for which they were run and make none of their own."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.features.path_results import LauncherPaths, network_evidence
from detectors.path_tests import PathTests
from detectors.runtime.detector_set import DetectorSet
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Event, Evidence, Finding, Kind
from fakes.compared_name import ComparedName
from fakes.diagnosis_chain import TOPOLOGY, Chain, detectors, raised
from fakes.synthetic_events import claims_of, cut_frame, event, job, node, worker
from fakes.synthetic_frames import BEGAN, job_frames

FABRIC = "(TCP between the launchers; of another fabric that the workers use it says nothing)"
JOB = job().name


def network(tester: str, time: float = 10.0, test: str = "t", testers: str = "a b c", **found: str) -> Event:
    return event("network.tested", node(tester), time, test=test, testers=testers, **found)


def storage(tester: str, error: str = "", mount: str = "/data", time: float = 10.0, **figures: object) -> Event:
    told = event("storage.tested", Entity(kind=Kind.MOUNT, name=f"{tester}{mount}"), time, test="s", testers="a b", node=tester, mount=mount, error=error, **figures)
    return msgspec.structs.replace(told, node=tester)


def tick(time: float, *events: Event) -> Frame:
    return replace(cut_frame(time, *events), tick=True)


def judged(*events: Event, after_s: float = 9.0) -> list[Claim]:
    return claims_of(PathTests(), [tick(10.0, *events), tick(10.0 + after_s)])


def lines(*events: Event) -> list[str]:
    (claim,) = [each for each in judged(*events) if each.active]
    assert (claim.entity, claim.score >= 0.7) == (job(), True)
    return [line.text.partition(": ")[2] for line in claim.evidence]


# --- network ---------------------------------------------------------------------------------------------------------


def test_fault_two_that_do_not_reach_each_other_while_both_reach_a_third_are_named_as_a_pair() -> None:
    assert lines(network("a", lost="b", answered="c"), network("b", lost="a", answered="c"), network("c", answered="a b")) == [
        "a and b do not reach each other, while both reach others: the way between them is cut, or a firewall closes it"
    ]


def test_fault_one_that_nobody_reaches_while_the_others_reach_one_another_is_cut_off() -> None:
    told = network("a", lost="b", answered="c"), network("c", lost="b", answered="a")
    assert lines(*told, network("b", lost="a c"))[0] == "b and a, c do not reach each other, while these reach others: its launcher runs, so its network is cut"
    down = lines(*told)
    assert down[0].endswith("its network is cut, or it is down"), "without a word of its own it may have no power"
    assert down[1] == "b told no result"


def test_fault_a_rack_of_many_launchers_that_is_cut_off_is_told_in_a_few_lines_and_each_path_is_looked_at_a_few_times() -> None:
    nodes = [ComparedName(f"node-{place:03d}") for place in range(300)]
    cut = set(nodes[:90])
    results = []
    for place, tester in enumerate(nodes):
        peers = [nodes[(place + step) % 300] for step in (1, 3, 7, 19, 101, 113)]
        results.append(LauncherPaths(tester, {peer: "lost" if {tester, peer} & cut else "answered" for peer in peers}, {}, {}, (), "", "e"))
    ComparedName.comparisons = 0
    found = network_evidence([each for each in results if each.tester not in cut], nodes[:90])
    assert ComparedName.comparisons < 20 * 210 * 6, "not each path for each node"
    assert found[0].text.endswith("do not reach each other, while these reach others: its network is cut, or it is down")
    assert len(found) == 6


def test_twin_of_two_nodes_alone_it_is_not_said_whose_the_fault_is() -> None:
    (line,) = lines(network("a", testers="a b", lost="b"), network("b", testers="a b", lost="a"))
    assert line == "a and b do not reach each other, and nobody else tells which of them is cut off, is down, or is behind a firewall"


def test_twin_an_open_network_is_said_to_be_open_with_its_slowest_path() -> None:
    told = (
        network("a", answered="b c", round_trip_ms="b=0.20 c=0.30", mb_per_s="b=800 c=700"), network("b", answered="a c", round_trip_ms="a=0.20 c=4.10", mb_per_s="a=90.5"),
        network("c", answered="a b"),
    )  # fmt: skip
    assert lines(*told) == [f"the network is open on all 6 paths tested, in 4.10 ms at most (b to c), with 90 MB/s at least (b to a) {FABRIC}"]


def test_twin_a_launcher_that_has_ended_or_is_stopped_is_no_fault_of_the_network() -> None:
    found = lines(network("a", refused="b", answered="c"), network("c", silent="b", answered="a"))
    assert "the network is open on all 4 paths" in found[0]
    assert found[1:3] == [
        "b: its host answers, and no launcher listens there: it has ended or is being started; not the network",
        "b: its host takes connections, and the launcher does not answer: it is stopped or busy; not the network",
    ]


def test_twin_a_firewall_that_drops_what_goes_to_one_port_cuts_no_network() -> None:
    found = lines(network("a", testers="a b", lost="b"), network("b", testers="a b", answered="a"))
    assert "open on the one path" in found[0]
    assert found[1] == "a does not reach b, which reaches a: something drops what goes to that port (a firewall), not the network"


def test_twin_a_launcher_that_was_held_up_does_not_accuse_all_others() -> None:
    found = lines(network("a", lost="b c", unsure="it does not reach its own port either (lost)"), network("b", answered="a c"), network("c", answered="a b"))
    assert "open on all 4 paths" in found[0]
    assert found[1] == "what a found is not counted: it does not reach its own port either (lost)"


def test_lost_packets_are_told_beside_an_open_network() -> None:
    assert lines(network("a", testers="a b", answered="b", sent_again="b=1"), network("b", testers="a b", answered="a"))[1] == (
        "a connection from a to b needed a second packet: some are lost on the way"
    )


def test_a_test_is_judged_once_all_have_told_or_after_a_while_and_late_results_say_nothing() -> None:
    detector = PathTests()
    assert claims_of(detector, [tick(10.0, network("a", answered="b", testers="a b"))]) == []
    assert claims_of(detector, [tick(17.0)]) == []
    assert [each.active for each in claims_of(detector, [tick(18.0)])] == [True]
    assert claims_of(detector, [tick(19.0, network("b", answered="a", testers="a b"))]) == []
    assert [each.active for each in claims_of(detector, [tick(28.0)])] == [False], "the test is over"
    assert claims_of(detector, [tick(60.0)]) == []
    at_once = claims_of(PathTests(), [tick(10.0, network("a", answered="b", testers="a b"), network("b", answered="a", testers="a b"))])
    assert len(at_once) == 1


def test_twin_launchers_that_ended_with_their_job_are_not_missed() -> None:
    assert judged(network("a", lost="b c"), event("job.finished", job(), 10.0, epoch=1)) == []


def test_what_a_strange_launcher_writes_breaks_nothing() -> None:
    assert judged(network("a", testers="a"), network("b", testers="", round_trip_ms="x= =1 b=nan c", answered="")) == []


# --- storage ---------------------------------------------------------------------------------------------------------


def test_fault_a_mount_that_fails_on_one_node_alone_is_that_nodes() -> None:
    (line,) = lines(storage("a", stat_s=0.001, read_s=0.002), storage("b", "Stale file handle"))
    assert line == "/data fails on b (Stale file handle) alone, while a stat and a read take 3.0 ms at most (a) on a: that node, not the server"


def test_fault_a_mount_that_fails_everywhere_is_told_of_all() -> None:
    assert lines(storage("a", "no answer within 3 s"), storage("b", "no answer within 3 s")) == ["/data fails on a, b (no answer within 3 s)"]


def nodes_of(mount: str, errors: dict[str, int], answering: int) -> list[Event]:
    """So many nodes with each error."""
    told = [error for error, count in errors.items() for _ in range(count)] + [""] * answering
    return [storage(f"node-{place:02d}", error, mount, **({} if error else {"stat_s": 0.001, "read_s": 0.002})) for place, error in enumerate(told)]


def test_fault_a_mount_that_most_nodes_cannot_read_is_the_servers_though_one_answers() -> None:
    (line,) = lines(*nodes_of("/data", {"no answer within 3 s": 99}, answering=1))
    assert line == (
        "/data fails on 99 of 100 nodes, node-00, node-01, node-02, node-03 and 95 more (no answer within 3 s): the server, or what lies between; "
        "node-99 answers, perhaps from the cache: a stat and a read take 3.0 ms at most (node-99) on node-99"
    )
    assert "not the server" not in lines(*nodes_of("/data", {"no answer within 3 s": 5}, answering=5))[0], "half of them"


def test_twin_a_mount_that_fails_on_a_few_nodes_of_many_is_theirs() -> None:
    (line,) = lines(*nodes_of("/data", {"Stale file handle": 2}, answering=6))
    assert line.startswith("/data fails on node-00, node-01 (Stale file handle) alone, while a stat")
    assert line.endswith(": those nodes, or what they share, not the server")


def test_different_errors_are_told_apart_each_with_its_nodes() -> None:
    (line,) = lines(*nodes_of("/data", {"Stale file handle": 1, "no answer within 3 s": 2}, answering=0))
    assert line == "/data fails on node-01, node-02 (no answer within 3 s), node-00 (Stale file handle)"
    (line,) = lines(*nodes_of("/data", {f"error {number}": 1 for number in range(7)}, answering=0))
    assert line.endswith("node-03 (error 3), and 3 other errors")


def test_twin_a_mount_that_answers_is_said_to_answer() -> None:
    assert lines(storage("a", stat_s=0.001, read_s=0.002), storage("b", stat_s=0.004)) == ["/data answers: a stat and a read take 4.0 ms at most (b) on a, b"]


# --- in the incident ---------------------------------------------------------------------------------------------------


def chain() -> Chain:
    made = Chain(panel=DetectorSet(JOB, [*detectors(), ("path_tests", PathTests())], lambda name, text: None))  # type: ignore[list-item]
    return made.feed(*job_frames(2, 2, 6, np.random.default_rng(0)))


NOW = BEGAN + 6.0
OPEN = (network("node-0", NOW + 3, testers="node-0 node-1", answered="node-1"), network("node-1", NOW + 3, testers="node-0 node-1", answered="node-0"))


def test_fault_the_result_joins_the_incident_that_the_test_was_run_for() -> None:
    broken = chain().feed(cut_frame(NOW, raised(worker("node-0", 0), NOW)), cut_frame(NOW + 3, *OPEN), tick(NOW + 4), tick(NOW + 20))
    (incident,) = broken.latest
    assert incident.cause == "network error"
    assert [part.kind for part in incident.parts] == ["worker.exception", "network.tested"]
    assert "network test, run by itself: the network is open on all 2 paths" in incident.evidence[-1].text
    assert incident.culprits == ()


def test_fault_the_rival_that_it_tells_apart_names_the_result() -> None:
    waiting = event("coordinator.isolated", job(), NOW, epoch=1, reason="node-1 cannot be reached", trains="1")
    cut = network("node-0", NOW + 3, testers="node-0", lost="node-1")
    (incident,) = chain().feed(tick(NOW + 1, waiting), tick(NOW + 3, cut)).latest
    assert incident.cause == "quorum lost"
    (rival,) = incident.rivals
    assert "network test, run by itself: node-0 and node-1 do not reach each other" in rival.apart


def test_twin_a_test_alone_makes_no_incident() -> None:
    assert chain().feed(tick(NOW + 3, *OPEN), tick(NOW + 20)).latest == []


def test_twin_a_test_joins_no_incident_that_it_says_nothing_of() -> None:
    lost = event("exit", worker("node-1", 0), NOW, code=-9, signal="SIGKILL", epoch=1, rank=2, step=12)
    (incident,) = chain().feed(tick(NOW, lost), tick(NOW + 3, *OPEN)).latest
    assert incident.cause == "worker killed"
    assert [part.kind for part in incident.parts] == ["worker.exited"]


ASKED = ["node-1", "node-0", "unknown", ""]


@pytest.mark.parametrize("asked", ASKED)
def test_the_result_joins_the_incident_for_which_it_was_asked_of_several_that_it_fits(asked: str) -> None:
    """The strongest where nobody said, or where that incident is over."""
    opened = {incident.parts[0].entity.name: incident for name, since in (("node-0", NOW - 900), ("node-1", NOW)) for incident in Diagnosis().diagnose((), [lost(name, since)], TOPOLOGY)}
    assert len(opened) == 2
    known = opened[asked].id if asked in opened else asked
    results = [network(tester, testers="node-0 node-2", incident=known, answered="node-2" if tester == "node-0" else "node-0") for tester in ("node-0", "node-2")]
    (claim,) = [claim for claim in judged(*results) if claim.active]
    told = msgspec.structs.replace(finding("network.tested", job(), 0.9, since=NOW + 60), evidence=claim.evidence)
    (revised,) = Diagnosis().diagnose(tuple(opened.values()), [told], TOPOLOGY)
    assert revised.id == opened[asked if asked in opened else "node-0"].id
    assert any(line.text.startswith("network test, run by itself: the network is open") for line in revised.evidence)


def lost(name: str, since: float) -> Finding:
    return msgspec.structs.replace(finding("node.lost", node(name), 0.95, since=since), id=name)


def test_twin_a_test_makes_no_accusation_surer() -> None:
    lost = finding("node.lost", node("node-1"), 0.95)
    (alone,) = Diagnosis().diagnose((), [lost], TOPOLOGY)
    (tested,) = Diagnosis().diagnose((alone,), [finding("network.tested", job(), 0.9, since=NOW + 60)], TOPOLOGY)
    assert [part.kind for part in tested.parts] == ["node.lost", "network.tested"], "however late it comes"
    assert (tested.culprits, tested.severity) == (alone.culprits, alone.severity)


def finding(kind: str, entity: Entity, score: float, since: float = NOW) -> Finding:
    proof = (Evidence(text="network test, run by itself: seen", status="path cut"),)
    return Finding(id=kind, revision=1, job=JOB, detector="d", digest="d", entity=entity, kind=kind, score=score, since=since, time=since, evidence=proof, active=True)


def test_a_test_is_shown_in_a_storm_of_findings() -> None:
    storm = [cut_frame(NOW, *(raised(worker("node-0", slot), NOW) for slot in range(300)))]
    (incident,) = chain().feed(*storm, tick(NOW + 3, *OPEN)).latest
    assert any("network test" in line.text for line in incident.evidence)
    assert "network.tested" in {part.kind for part in incident.parts}
