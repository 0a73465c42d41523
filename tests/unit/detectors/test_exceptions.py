"""Exceptions: raised by a worker, told before it dies, named by the table of statuses."""

import pytest

from detectors.diagnosis import Diagnosis
from detectors.exceptions import Exceptions
from eagle_eye.types import Event, Finding, Severity, Topology
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker

WORKER = worker("node-1", 0)
ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"
RESET = "[pair.cc:553] Connection closed by peer [127.0.0.1]:51122"


def raised(kind: str, message: str, time: float = 5.0, epoch: int = 1) -> Event:
    trace = 'File "train.py", line 9\n  loss.backward()'
    return event("exception", WORKER, time, type=kind, message=message, traceback=trace, epoch=epoch, step=40)


def test_fault_a_cuda_error_is_told_with_type_worker_and_status() -> None:
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, raised("torch.AcceleratorError", ILLEGAL))])
    assert (claim.entity, claim.kind, claim.score) == (WORKER, "worker.exception", 1.0)
    assert claim.evidence[0].status == "illegal memory access"
    assert "AcceleratorError" in claim.evidence[0].text
    assert claim.evidence[-1].text == "loss.backward()"


def test_the_micro_batch_that_raised_is_evidence() -> None:
    noted = event("exception", WORKER, 5.0, type="ValueError", message="negative length", epoch=1, step=40, notes="in step 40, micro-batch 3")
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, noted)])
    assert claim.evidence[1].text == "in step 40, micro-batch 3"


def test_twin_a_victims_connection_reset_is_a_symptom_with_a_low_score() -> None:
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, raised("RuntimeError", RESET))])
    assert claim.evidence[0].status == "connection refused or reset"
    assert claim.score == Exceptions().symptom_score


def test_the_first_exception_of_a_worker_counts_and_ends_with_the_epoch() -> None:
    begun = event("epoch.started", job(), 7.0, epoch=2)
    frames = [
        cut_frame(5.01, raised("RuntimeError", ILLEGAL)),
        cut_frame(5.10, raised("RuntimeError", RESET, time=5.09)),
        cut_frame(7.01, begun),
        cut_frame(7.02, raised("RuntimeError", RESET, time=6.9)),
        cut_frame(9.00, raised("RuntimeError", RESET, time=8.9, epoch=2)),
    ]
    claims = claims_of(Exceptions(), frames)
    assert [(claim.active, claim.evidence[0].status) for claim in claims] == [
        (True, "illegal memory access"),
        (False, "illegal memory access"),
        (True, "connection refused or reset"),
    ]


def test_an_exception_that_the_next_epoch_overtakes_is_told_once() -> None:
    """The nodes' reports arrive in any order."""
    frames = [cut_frame(7.0, event("epoch.started", job(), 6.9, epoch=2)), cut_frame(7.1, raised("ValueError", "no")), cut_frame(7.2, raised("ValueError", "no", 5.5))]
    claims = claims_of(Exceptions(), frames)
    assert [(claim.active, claim.since) for claim in claims] == [(True, 5.0), (False, 5.0)]


def test_an_exception_that_arrives_after_its_consequence_is_told() -> None:
    """The stream of its node was away; the peer's was not."""
    reset = event("exception", worker("node-0", 0), 5.1, type="RuntimeError", message="Connection closed by peer", epoch=1)
    frames = [cut_frame(5.2, reset), cut_frame(7.0, event("epoch.started", job(), 6.9, epoch=2)), cut_frame(60.0, raised("ValueError", "no"))]
    claims = [claim for claim in claims_of(Exceptions(), frames) if claim.entity == WORKER]
    assert [(claim.active, claim.evidence[0].status) for claim in claims] == [(True, "other software error"), (False, "other software error")]


def test_an_exception_that_is_told_after_the_job_has_failed_of_it_is_over_at_once() -> None:
    failed = event("job.failed", job(), 6.9, epoch=1)
    assert [claim.active for claim in claims_of(Exceptions(), [cut_frame(7.0, failed), cut_frame(7.1, raised("ValueError", "no"))])] == [True, False]


def test_an_exception_that_is_told_before_its_own_epoch_is_not_over_with_it() -> None:
    """Workers that live on raise before the coordinator has reported that their epoch has begun."""
    exceptions = Exceptions()
    early = cut_frame(5.01, raised("ValueError", "no", epoch=2)), cut_frame(5.02, event("epoch.started", job(), 4.9, epoch=2))
    assert [claim.active for claim in claims_of(exceptions, early)] == [True]
    assert [claim.active for claim in claims_of(exceptions, [cut_frame(9.0, event("epoch.started", job(), 8.9, epoch=3))])] == [False]


def test_the_users_own_line_is_told_where_the_traceback_ends_in_a_library() -> None:
    told = raised("RuntimeError", "shapes cannot be multiplied")
    framed = event("exception", WORKER, 5.0, **{**told.attributes, "frame": "train.py:9 in forward"})
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, framed)])
    assert "at train.py:9 in forward" in [line.text for line in claim.evidence]


def test_no_traceback_is_kept_if_none_is_wanted() -> None:
    (claim,) = claims_of(Exceptions(traceback_lines=0), [cut_frame(5.01, raised("ValueError", "no"))])
    assert len(claim.evidence) == 1


def test_a_refused_file_is_told_with_path_and_room() -> None:
    told = raised("OSError", "[Errno 28] No space left on device: '/ckpt/x.pt'")
    stored = event("exception", WORKER, 5.0, **{**told.attributes, "path": "/ckpt/x.pt", "errno": "ENOSPC", "free_bytes": "12000"})
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, stored)])
    assert claim.evidence[0].status == "storage error"
    assert (claim.evidence[1].text, claim.evidence[1].value) == ("ENOSPC at /ckpt/x.pt: 12 kB are free there", 12_000)


def stored(kind: str, message: str, code: str) -> Event:
    told = raised(kind, message)
    return event("exception", WORKER, 5.0, **{**told.attributes, "path": "/ckpt/x.pt", "errno": code, "free_bytes": "12000"})


@pytest.mark.parametrize("code", ["ENOSPC", "EROFS", "EDQUOT", "ESTALE", "EIO", "EFBIG", "ENOTCONN", "ESHUTDOWN", "ETIMEDOUT", "EREMOTEIO", ""])
@pytest.mark.parametrize(("kind", "message"), [("RuntimeError", "could not save"), ("OSError", "Kein Platz mehr"), ("RuntimeError", "watchdog: could not save")])
def test_a_refused_file_is_storage_whatever_the_words(code: str, kind: str, message: str) -> None:
    """'' is what torch's writer in C++ gives."""
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, stored(kind, message, code))])
    assert (claim.evidence[0].status, claim.score) == ("storage error", 1.0)


def test_twin_a_wrong_path_is_the_programs() -> None:
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, stored("RuntimeError", "could not read", "ENOENT"))])
    assert claim.evidence[0].status == "other software error"


def test_twin_an_exception_that_has_nothing_to_do_with_storage_has_no_such_line() -> None:
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, raised("ValueError", "negative length"))])
    assert not any("free" in line.text for line in claim.evidence)


@pytest.mark.parametrize(
    ("known", "status"),
    [({"status": "out of memory", "reason": "the kernel's out-of-memory killer ended a process beside it"}, "out of memory"), ({}, "other software error")],
)
def test_an_exception_after_a_kill_for_memory_is_a_lack_of_memory_and_without_it_is_not(known: dict[str, str], status: str) -> None:
    told = raised("RuntimeError", "DataLoader worker (pid 41) is killed by signal: Killed. ")
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, event("exception", WORKER, 5.0, **{**told.attributes, **known}))])
    assert claim.evidence[0].status == status
    assert [line.text for line in claim.evidence if "killer" in line.text] == [text for text in (known.get("reason"),) if text]


def in_a_thread(time: float = 5.0) -> Event:
    return event("thread.exception", WORKER, time, **{**raised("ValueError", "no metrics").attributes, "thread": "reporter"})


def test_twin_an_exception_that_ends_a_thread_is_told_and_asks_for_nothing() -> None:
    (claim,) = claims_of(Exceptions(), [cut_frame(5.01, in_a_thread())])
    assert claim.kind == "thread.exception"
    assert "thread reporter of worker" in claim.evidence[0].text
    finding = Finding(
        id="f", revision=1, detector="exceptions", digest="d", job="t/n/r", entity=claim.entity, kind=claim.kind, score=1.0, since=5.0, time=5.1,
        evidence=claim.evidence, active=True,
    )  # fmt: skip
    (incident,) = Diagnosis().diagnose((), [finding], Topology())
    assert (incident.cause, incident.severity, incident.culprits) == ("thread exception", Severity.INFO, ())


def test_the_exception_of_a_thread_does_not_hide_that_of_the_worker() -> None:
    claims = claims_of(Exceptions(), [cut_frame(5.01, in_a_thread()), cut_frame(6.0, raised("RuntimeError", ILLEGAL, time=5.9))])
    assert [claim.kind for claim in claims] == ["thread.exception", "worker.exception"]


def test_the_exception_of_a_thread_is_over_after_a_while() -> None:
    exceptions = Exceptions(thread_s=60.0)
    claims = claims_of(exceptions, [cut_frame(5.01, in_a_thread()), cut_frame(60.0), cut_frame(66.0)])
    assert [claim.active for claim in claims] == [True, False]
