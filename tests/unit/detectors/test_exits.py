"""Exits: a worker's process ended although nobody told it to."""

import pytest

from detectors.diagnosis import Diagnosis
from detectors.exits import Exits
from eagle_eye.types import Claim, Event, Finding, Topology
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker

VICTIM = worker("node-0", 1)


def died(**attributes: object) -> list[Claim]:
    told = {"pid": 7, "rank": 1, "epoch": 1, "step": 12, **attributes}
    return claims_of(Exits(), [cut_frame(10.0, event("exit", VICTIM, 9.99, **told))])


def test_fault_a_killed_worker_is_named_by_one_cut_frame() -> None:
    (claim,) = died(code=-9, signal="SIGKILL", last_lines="step 11\nstep 12")
    assert (claim.entity, claim.kind, claim.active, claim.since) == (VICTIM, "worker.exited", True, 9.99)
    assert claim.evidence[0].status == "killed"
    assert "SIGKILL" in claim.evidence[0].text
    assert "step 12" in claim.evidence[0].text
    assert [line.text for line in claim.evidence[1:]] == ["its last words: step 11", "its last words: step 12"]


def test_twin_a_worker_that_is_done_exits_with_zero() -> None:
    assert died(code=0, signal="") == []


def finished(slot: int, time: float, epoch: int = 1) -> Event:
    return event("worker.finished", worker("node-0", slot), time, pid=7, rank=slot, epoch=epoch, step=12)


def forsaken(slot: int, time: float, epoch: int = 1) -> Event:
    """A worker whose peer has gone."""
    return event("exception", worker("node-1", slot), time, type="RuntimeError", message="Connection closed by peer", epoch=epoch)


def test_an_end_that_the_launcher_brought_on_is_no_death() -> None:
    assert died(code=-15, signal="SIGTERM", expected=1) == []


@pytest.mark.parametrize(
    ("attributes", "status"),
    [
        ({"code": -15, "signal": "SIGTERM"}, "killed"),
        ({"code": -11, "signal": "SIGSEGV"}, "exited abnormally"),
        ({"code": 1, "signal": ""}, "exited abnormally"),
        ({"code": "", "signal": ""}, "exited abnormally"),
        ({"code": 1, "signal": "", "exception": "ConnectionResetError"}, "connection refused or reset"),
        ({"code": 1, "last_lines": "RuntimeError: Connection closed by peer"}, "connection refused or reset"),
        ({"code": 1, "last_lines": "torch.OutOfMemoryError: CUDA out of memory"}, "out of memory"),
        ({"code": 1, "last_lines": "reading connection reset counters, nvlink ok"}, "exited abnormally"),
    ],
)
def test_the_last_words_tell_victims_but_chatter_tells_nothing(attributes: dict[str, object], status: str) -> None:
    (claim,) = died(**attributes)
    assert claim.evidence[0].status == status


ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
FULL = "OSError: [Errno 28] No space left on device: '/ckpt/a.pt'"
FINALISER = "Exception ignored in: <function Reader.__del__ at 0x7f>\nTraceback (most recent call last):\n"
FROM = "\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"


@pytest.mark.parametrize("attributes", [{"last_lines": f"step 9\nTraceback (most recent call last):\n{ECC}\nCUDA kernel errors may be late"},
    {"last_lines": ECC, "exception": "AcceleratorError"}, {"last_lines": f"[rank3]: {ECC}\n[rank3]: CUDA kernel errors may be late"},
    {"last_lines": f"{ECC}{DURING}RuntimeError: Connection closed by peer"}, {"last_lines": f"{ECC}\n{FINALISER}AttributeError: no attribute 'x'"},
    {"last_lines": f"{ECC}\n{FINALISER}KeyError: 'x'{DURING}AttributeError: no attribute 'x'"}])  # fmt: skip
def test_broken_hardware_that_ended_it_is_read_from_its_last_words(attributes: dict[str, object]) -> None:
    (claim,) = died(code=1, **attributes)
    assert claim.evidence[0].status == "ecc error"


@pytest.mark.parametrize("attributes", [{"last_lines": f"{ECC}\nretrying on another GPU\nValueError: negative length"},
    {"last_lines": f"{ECC}\nValueError: negative length", "exception": "ValueError"}, {"last_lines": ECC, "exception": "ValueError"},
    {"last_lines": f"ValueError: negative length\nException in thread Thread-7 (read):\nTraceback (most recent call last):\n{ECC}"},
    {"last_lines": "RuntimeError: this model needs NVLink"}, {"last_lines": f"log of node-7: {ECC}"}])  # fmt: skip
def test_twin_words_about_hardware_that_did_not_end_it_accuse_nobody_of_broken_hardware(attributes: dict[str, object]) -> None:
    (claim,) = died(code=1, **attributes)
    assert claim.evidence[0].status == "exited abnormally"


@pytest.mark.parametrize("exception", ["", "RuntimeError"])
@pytest.mark.parametrize("link", [FROM, DURING])
def test_a_full_disk_from_which_the_last_exception_was_raised_is_storage(exception: str, link: str) -> None:
    (claim,) = died(code=1, last_lines=f"{FULL}{link}RuntimeError: could not save", exception=exception)
    assert claim.evidence[0].status == "storage error"


@pytest.mark.parametrize("exception", ["", "ValueError"])
def test_twin_a_full_disk_that_was_survived_is_not_what_ended_it(exception: str) -> None:
    (claim,) = died(code=1, last_lines=f"{FULL}\nTraceback (most recent call last):\nValueError: negative length", exception=exception)
    assert claim.evidence[0].status == "exited abnormally"


def test_it_is_over_with_the_next_epoch_and_what_it_led_to_is_not_told() -> None:
    exits = Exits()
    killed = event("exit", VICTIM, 9.99, code=-9, signal="SIGKILL", epoch=1)
    begun = event("epoch.started", job(), 11.0, epoch=2)
    late = event("exit", worker("node-1", 0), 11.1, code=1, epoch=1)
    claims = claims_of(exits, [cut_frame(10.0, killed), cut_frame(11.0, begun), cut_frame(11.2, late)])
    assert [(claim.entity, claim.active) for claim in claims] == [(VICTIM, True), (VICTIM, False)]
    assert "epoch 2 has begun" in claims[1].evidence[-1].text


def test_an_exit_that_is_overtaken_by_the_next_epoch_is_told_once() -> None:
    """The nodes' reports arrive in any order."""
    begun = event("epoch.started", job(), 11.0, epoch=2)
    killed = event("exit", VICTIM, 9.99, code=-9, signal="SIGKILL", epoch=1)
    follower = event("exit", worker("node-1", 0), 10.2, code=1, epoch=1)
    claims = claims_of(Exits(), [cut_frame(11.0, begun), cut_frame(11.2, killed), cut_frame(11.4, follower)])
    assert [(claim.entity, claim.active, claim.since) for claim in claims] == [(VICTIM, True, 9.99), (VICTIM, False, 9.99)]
    assert "epoch 1 was over when it was reported" in claims[1].evidence[-1].text


RESET = {"last_lines": "Traceback (most recent call last):\nRuntimeError: Connection closed by peer"}


@pytest.mark.parametrize("first", [{"code": 1, **RESET}, {"code": -9, "signal": "SIGKILL"}])
def test_a_death_that_arrives_after_its_consequence_or_another_death_of_its_epoch_is_told(first: dict[str, object]) -> None:
    """The stream of its node was away; the peer's was not."""
    peer = event("exit", worker("node-1", 0), 10.2, epoch=1, **first)
    begun, killed = event("epoch.started", job(), 11.0, epoch=2), event("exit", VICTIM, 9.99, code=-9, signal="SIGKILL", epoch=1)
    claims = claims_of(Exits(), [cut_frame(10.3, peer), cut_frame(11.0, begun), cut_frame(60.0, killed), cut_frame(60.1, killed)])
    assert [claim.active for claim in claims if claim.entity == VICTIM] == [True, False], "once, however often it arrives"


@pytest.mark.parametrize(("reason", "open_"), [("command", False), ("rebalance", False), ("join", False), ("death", True), ("node lost", True)])
def test_a_peer_that_cried_because_its_group_was_ended_on_purpose_is_no_part_of_what_comes_next(reason: str, open_: bool) -> None:
    """A kill three seconds after a commanded restart was folded into the incident of those cries, which had been healed before it."""
    exits = Exits()
    cry, begun = event("exit", VICTIM, 9.99, epoch=1, code=1, **RESET), event("epoch.started", job(), 10.1, epoch=2, reason=reason)
    claims = claims_of(exits, [cut_frame(10.0, cry), cut_frame(10.2, begun)])
    assert claims[-1].active is open_


def test_what_a_peer_cried_stays_although_a_node_comes_back_in_a_further_epoch() -> None:
    """Whose loss it was may be told only then: its agent speaks once a second."""
    cry = event("exit", VICTIM, 9.99, epoch=1, code=1, **RESET)
    lost, returned = (event("epoch.started", job(), 10.1 + after, epoch=2 + after, reason=reason) for after, reason in ((0, "node lost"), (1, "node returned")))
    frames = [cut_frame(10.0, cry), cut_frame(10.2, lost), cut_frame(11.2, returned)]
    assert [claim.active for claim in claims_of(Exits(), frames)] == [True]
    assert [claim.active for claim in claims_of(Exits(), [*frames, cut_frame(20.2)])] == [True, False]


def test_twin_what_a_late_peer_dies_of_is_not_told_beside_it() -> None:
    exits = Exits()
    begun, killed = event("epoch.started", job(), 11.0, epoch=2), event("exit", VICTIM, 9.99, code=-9, signal="SIGKILL", epoch=1)
    followers = [event("exit", worker("node-1", slot), 10.2, code=1, epoch=1, **more) for slot, more in enumerate((RESET, {}))]
    claims = claims_of(exits, [cut_frame(10.0, killed), cut_frame(11.0, begun), *(cut_frame(60.0 + at, each) for at, each in enumerate(followers))])
    assert {claim.entity for claim in claims} == {VICTIM}


def test_a_death_that_is_told_before_its_own_epoch_is_not_over_with_it() -> None:
    """Elastic workers live on, and may die before the coordinator has reported that their epoch has begun."""
    exits = Exits()
    killed = event("exit", VICTIM, 9.99, code=1, epoch=2)
    assert [claim.active for claim in claims_of(exits, [cut_frame(10.0, killed), cut_frame(10.1, event("epoch.started", job(), 9.9, epoch=2))])] == [True]
    assert [claim.active for claim in claims_of(exits, [cut_frame(12.0, event("epoch.started", job(), 11.9, epoch=3))])] == [False]


def test_a_late_exit_is_not_told_again_beside_its_exception() -> None:
    why = event("exception", VICTIM, 9.9, type="ValueError", message="no", epoch=1)
    late = event("exit", VICTIM, 9.99, code=1, epoch=1)
    begun = event("epoch.started", job(), 10.5, epoch=2)
    assert claims_of(Exits(), [cut_frame(10.0, why), cut_frame(10.6, begun), cut_frame(10.7, late)]) == []
    failed = event("job.failed", job(), 10.5, epoch=1)
    assert claims_of(Exits(), [cut_frame(10.0, why), cut_frame(10.6, failed), cut_frame(10.7, late)]) == []


def test_a_death_that_is_told_after_the_job_has_failed_of_it_is_over_at_once() -> None:
    failed = event("job.failed", job(), 10.5, epoch=1)
    killed = event("exit", VICTIM, 9.99, code=-9, signal="SIGKILL", epoch=1)
    assert [claim.active for claim in claims_of(Exits(), [cut_frame(10.6, failed), cut_frame(10.7, killed)])] == [True, False]


def test_death_and_new_epoch_in_one_frame_are_both_told() -> None:
    """A flood after the stream was away."""
    killed = event("exit", VICTIM, 9.99, code=-9, signal="SIGKILL", epoch=1)
    begun = event("epoch.started", job(), 11.0, epoch=2)
    assert [claim.active for claim in claims_of(Exits(), [cut_frame(30.0, killed, begun)])] == [True, False]


@pytest.mark.parametrize(("lines", "kept"), [(0, 0), (1, 1), (5, 2)])
def test_as_many_last_lines_are_kept_as_asked_for(lines: int, kept: int) -> None:
    told = event("exit", VICTIM, 9.99, code=1, last_lines="one\ntwo")
    (claim,) = claims_of(Exits(lines=lines), [cut_frame(10.0, told)])
    assert len(claim.evidence) == 1 + kept


def test_a_kill_for_want_of_memory_is_called_so_and_says_whose_limit_it_was() -> None:
    why = "the kernel's out-of-memory killer ended it: cgroup /pod reached its limit of 1000 bytes"
    (claim,) = died(code=-9, signal="SIGKILL", status="out of memory", reason=why, cgroup="/pod", memory_limit_bytes=1000)
    assert claim.evidence[0].status == "out of memory"
    assert claim.evidence[0].text.endswith(why)
    finding = Finding(
        id="f", revision=1, detector="exits", digest="d", job="t/n/r", entity=claim.entity, kind=claim.kind, score=1.0, since=9.99, time=10.0,
        evidence=claim.evidence, active=True,
    )  # fmt: skip
    (incident,) = Diagnosis().diagnose((), [finding], Topology())
    assert incident.cause == "out of memory"
