"""The newest checkpoints of a job that are safe."""

from dashboard.sources import REFRESH_S, Sources
from eagle_eye.checkpoint_safety import JobSafety
from eagle_eye.ledger.job_safety import job_safeties


def of_job(sources: Sources, job: str) -> JobSafety:
    """Without a tier where the job has told of none."""
    return sources.remembered(("safe steps", job), lambda: job_safeties(sources.ledger, job).get(job, JobSafety()), seconds=REFRESH_S)
