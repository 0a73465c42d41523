"""Checkpoints that storage refused, as findings and as an incident that asks for nothing but room."""

from detectors.checkpoint_saves import CheckpointSaves
from detectors.diagnosis import Diagnosis
from eagle_eye.types import Claim, Event, Finding, Severity, Topology
from fakes.synthetic_events import claims_of, cut_frame, event, job

WORKER = "run/node-0/0"


def failed(time: float = 10.0, *, step: int = 40, path: str = "/ckpt", errno: str = "ENOSPC", worker: str = WORKER) -> Event:
    told = {"worker": worker, "step": step, "path": path, "errno": errno, "reason": "No space left on device", "free_bytes": 12_000, "needed_bytes": 3_000_000_000}
    return event("checkpoint.failed", job(), time, **told, attempt=1, retry_s=1.0)


def saved(time: float = 20.0, *, step: int = 60, path: str = "/ckpt", worker: str = WORKER) -> Event:
    return event("checkpoint.saved", job(), time, step=step, path=f"{path}/step-{step:012d}.json", finite=True, worker=worker)


def claims(*events: Event) -> list[Claim]:
    return claims_of(CheckpointSaves(), [cut_frame(each.time, each) for each in events])


def test_fault_a_refused_save_is_claimed_until_one_succeeds() -> None:
    began, ended = claims(failed(), saved())
    assert (began.entity, began.kind, began.active, began.since) == (job(), "checkpoint.failed", True, 10.0)
    text = began.evidence[0].text
    for words in (f"worker {WORKER}", "step 40", "/ckpt", "ENOSPC: No space left on device", "12 kB are free there", "it needs 3 GB"):
        assert words in text
    assert (began.evidence[0].value, began.evidence[0].threshold, began.evidence[0].status) == (12_000, 3e9, "storage error")
    assert (ended.active, ended.evidence[-1].text) == (False, "over: the checkpoint of step 60 is saved")


def test_twin_checkpoints_that_are_saved_however_late_are_no_claim() -> None:
    assert claims(saved(20.0, step=10), saved(2000.0, step=20)) == []


def test_one_that_goes_on_is_one_claim_and_another_error_a_revision() -> None:
    again = claims(failed(10.0), failed(12.0, step=50), failed(14.0, step=60, errno="EROFS"))
    assert [(claim.since, claim.evidence[0].text.partition("to /ckpt: ")[2][:6]) for claim in again] == [(10.0, "ENOSPC"), (10.0, "EROFS:")]


def test_a_success_elsewhere_does_not_end_it() -> None:
    assert [claim.active for claim in claims(failed(path="/nfs/ckpt"), saved(path="/tmp/ckpt"))] == [True]
    assert [claim.active for claim in claims(failed(path="/ckpt/rank-1", worker="run/node-0/1"), saved(path="/ckpt/rank-0"))] == [True]


def test_a_script_with_a_folder_for_each_step_has_one_claim_that_ends() -> None:
    found = claims(failed(path="/ckpt/40"), failed(12.0, path="/ckpt/50", step=50), saved(path="/ckpt/60"))
    assert [(claim.active, claim.since) for claim in found] == [(True, 10.0), (True, 10.0), (False, 10.0)]


def test_of_two_folders_both_have_to_be_mended() -> None:
    found = claims(failed(path="/a/x"), failed(11.0, path="/b/x", worker="run/node-1/0"), saved(path="/a/x"), saved(21.0, path="/b/x"))
    assert [(claim.active, len(claim.evidence)) for claim in found] == [(True, 1), (True, 2), (True, 1), (False, 2)]


def test_a_new_epoch_ends_nothing_and_the_jobs_end_says_what_is_lost() -> None:
    began, ended = claims(failed(), event("epoch.started", job(), 12.0, epoch=2), event("job.finished", job(), 30.0, epoch=2))
    assert (began.active, ended.active) == (True, False)
    assert ended.evidence[-1].text == "over: the job has ended; never saved: the checkpoint of step 40 in /ckpt"


def finding(claim: Claim, revision: int = 1) -> Finding:
    return Finding(
        id="f", revision=revision, detector="checkpoint_saves", digest="d", job="t/n/r", entity=claim.entity, kind=claim.kind, score=claim.score,
        since=claim.since, time=claim.since, evidence=claim.evidence, active=claim.active,
    )  # fmt: skip


def test_the_incident_is_a_storage_error_of_nobody_and_is_over_with_the_next_save() -> None:
    began, ended = claims(failed(), saved())
    (opened,) = Diagnosis().diagnose((), [finding(began)], Topology())
    assert (opened.cause, opened.severity, opened.culprits, opened.active) == ("storage error", Severity.SEV3, (), True)
    (closed,) = Diagnosis().diagnose([opened], [finding(ended, 2)], Topology())
    assert not closed.active
