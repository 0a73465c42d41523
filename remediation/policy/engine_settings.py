"""Settings of the engine ([engine] in the configuration): its mode, its time-outs, and how often it may attempt a repair."""

from dataclasses import dataclass, field

from eagle_eye.ranges import Count, CountOrNone, Delay, LongSeconds, Seconds, Share
from eagle_eye.types import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Seconds, steps and counts; shares are between 0 and 1."""

    mode: Mode = Mode.OBSERVE
    """observe: record what should be done; recommend: ask an operator for approval; auto: do it where the guards allow it."""
    debounce_s: Delay = 1.0
    """After the last new cause an incident counts as settled ..."""
    debounce_slow_s: Delay = 2.5
    """The same for a slow-down, whose workers are named one after the other, tick by tick; the job runs meanwhile ..."""
    debounce_max_s: Seconds = 5.0
    """... and after so long whatever comes."""
    self_healing_s: Seconds = 10.0
    """How long a job's coordinator is given to heal what it heals by itself."""
    verify_s: Seconds = 30.0
    """An action that has not brought back steps and throughput by then has failed; a job whose steps are long is given as
    long as its own are predicted to take."""
    verify_steps: Count = 5
    """New steps that must be committed."""
    reattempt_s: Seconds = 2.0
    """A worker that was continued must move by then."""
    throughput_share: Share = 0.9
    """Share of the throughput expected of the job's workers that must be reached."""
    relapse_s: Seconds = 60.0
    """The same fault within this time after an action means that the action did not help."""
    attempts: dict[str, CountOrNone] = field(default_factory=lambda: {"reattempt": 3, "restart_worker": 1, "roll_back": 2})
    """How often a repair may be tried on the same fault before the next stronger one (3 and 1: our choice, the
    literature names none); once for what is not listed."""
    breaker_after: dict[str, Count] = field(
        default_factory=lambda: {"evict_node": 1, "restart_worker": 3, "roll_back": 3, "resize": 1, "rebalance": 2}
    )
    """How many times an action may fail to help a job before its breaker opens; then an operator must close it. The first
    isolating action that does not help opens it; weaker ones are followed by stronger ones, but not for ever. What a job
    does to itself is not counted."""
    restore_attempts: CountOrNone = 5
    """How many resizes in a row the engine may make by itself to give returned workers to jobs, each after twice the wait of
    the one before (replan_s at first); if the workers are not placed by then the breaker of `resize` opens on these jobs."""
    breaker_s: LongSeconds = 3600.0
    """Failures count for so long."""
    rank_swap: bool = True
    """Before a node is evicted for what was inferred, two nodes exchange their ranks, to see what the fault follows. false: without that proof."""
    path_tests: bool = True
    """The launchers test the network between them, and the job's storage, when an incident may come from there: some connections and reads. false: never."""
    confidence: Share = 0.5
    """Confidence below which a culprit is not isolated."""
    horizon_s: LongSeconds = 3600.0
    """Running time that a slow-down is weighed against."""
    restart_success_share: Share = 0.5
    """Share of slow-downs that a restart is expected to end."""
    downtime_s: Delay = 5.0
    """What a restart takes, until the job has shown its own."""
    repair_s: LongSeconds = 86_400.0
    """Until a worker that cannot be replaced, or a node, is expected back: alternatives for elastic jobs are priced over it."""
    worker_mtbf_s: LongSeconds = 50_700.0 * 3600
    """Mean time between failures of one worker (Llama 3, 2024: 419 interruptions in 54 days on 16,384 GPUs)."""
    regroup_s: Delay = 0.25
    """What a change of an elastic job's workers costs it, until it has shown its own ..."""
    start_s: Delay = 5.0
    """... and how long a worker more takes to join; the others train on meanwhile."""
    replan_s: Seconds = 5.0
    """A slow-down that was found to be cheapest left alone is weighed again after so long."""
    expires_s: Seconds = 600.0
    """How long a plan is valid."""
