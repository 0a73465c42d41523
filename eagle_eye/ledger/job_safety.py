"""Of the jobs of a ledger, the newest checkpoints that are safe: what the command and the page of a job show."""

from eagle_eye.checkpoint_safety import JobSafety, job_safety

from .ledger import Ledger


def job_safeties(ledger: Ledger, job: str = "") -> dict[str, JobSafety]:
    """Job → its checkpoints: of all that run and have told of any, or of `job`, also if it is over. Raises LedgerError."""
    running = ledger.jobs()
    told = {name: each for name, each in ledger.safety(job).items() if job or name in running}
    return {name: job_safety(each, running[name].layout.nodes if name in running else [one.node for one in each]) for name, each in told.items()}
