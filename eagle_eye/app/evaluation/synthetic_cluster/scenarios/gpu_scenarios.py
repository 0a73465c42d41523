"""GPUs: errors that stop a job, errors beside which training goes on, heat, power, NVLinks, meters."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, TickSignals
from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import (
    JobScenario,
    Parts,
    ScenarioPair,
    Victims,
    alone,
    as_drill,
)
from eagle_eye.types import Kind

from .step_changes import each_tick, reads, reads_everywhere, reads_times, slower, slower_all, waits_more

HEAT, POWER_CAP = float(0x20), float(0x4)
"""Bits of NVML's mask of what holds the clocks down: software thermal slowdown, software power cap."""
COUNTED_S = 3.0
LIMIT_WATTS = 700.0


def _gpu(jobs: Victims) -> Parts:
    return (jobs[0].gpu, jobs[0].worker)


def _throttled(job: DrillJob) -> None:
    """Its fan or its cold plate: hot, lower clocks, and all wait for it."""
    slower(job, [job.target.rank], 1.35)
    reads_times(job, Kind.GPU, job.target.gpu, {"sm_clock_mhz": 1 / 1.35, "power_watts": 0.8})
    hot = {"temperature_celsius": 87.0, "memory_temperature_celsius": 95.0, "throttled_thermal_percent": 70.0, "throttle_reasons": HEAT}
    reads(job, Kind.GPU, job.target.gpu, hot)


def _hot(job: DrillJob) -> None:
    """As hot as its place in the rack has it, and as fast as ever."""

    def change(signals: TickSignals) -> None:
        signals.metrics[Kind.GPU]["temperature_celsius"][signals.place(Kind.GPU, job.target.gpu)] += 12.0

    each_tick(job, change)


def _power_cap(job: DrillJob) -> None:
    """Of all: the site is to draw less."""
    slower_all(job, 1.25)
    reads_times(job, Kind.GPU, "", {"sm_clock_mhz": 1 / 1.25, "power_watts": 0.72})
    reads_times(job, Kind.NODE, "", {"power_watts": 0.78})
    reads_everywhere(job, Kind.GPU, {"throttled_power_percent": 85.0, "throttle_reasons": POWER_CAP})


def _remapped(job: DrillJob) -> None:
    """An error that could not be corrected, contained: a row is taken out of use at the next reset."""
    job.tell(job.onset + 0.4, "gpu.rows_remapped", job.gpu, rows=2, before=1, uncorrected=1, pending=1)

    def change(signals: TickSignals) -> None:
        at, rows = signals.place(Kind.GPU, job.target.gpu), signals.metrics[Kind.GPU]
        rows["ecc_uncorrected_per_s"][at] = float(signals.time < job.onset + COUNTED_S)
        rows["remapped_rows_uncorrected"][at] += 1.0
        rows["remap_pending"][at] = 1.0

    each_tick(job, change)


def _corrected(job: DrillJob) -> None:
    """A few errors, each of which was corrected."""

    def change(signals: TickSignals) -> None:
        if job.rng.random() < 0.1:
            signals.metrics[Kind.GPU]["ecc_corrected_per_s"][signals.place(Kind.GPU, job.target.gpu)] = 1.0

    each_tick(job, change)


def _nvlinks(job: DrillJob) -> None:
    """One is down, another repeats what it sends: exchanges take longer."""
    job.tell(job.onset + 0.4, "gpu.nvlink_down", job.gpu, link=4, remote="0000:05:00.0")
    reads(job, Kind.GPU, job.target.gpu, {"nvlinks_active": 17.0, "nvlinks_down": 1.0, "nvlink_crc_errors_per_s": 12.0, "nvlink_recoveries_per_s": 0.6})
    waits_more(job, 0.4)


def _few_nvlink_errors(job: DrillJob) -> None:
    """Repeated at once, and nobody waits."""
    reads(job, Kind.GPU, job.target.gpu, {"nvlink_crc_errors_per_s": 0.3})


def _little_more_power(job: DrillJob) -> None:
    """No two chips are alike."""
    reads_times(job, Kind.GPU, job.target.gpu, {"power_watts": 1.05})


def _at_the_limit(job: DrillJob) -> None:
    """All draw what they may at most, again and again the same."""
    reads_everywhere(job, Kind.GPU, {"power_watts": LIMIT_WATTS})


def _stuck(job: DrillJob) -> None:
    """The meter of one GPU says what it said last."""
    last: list[float] = []

    def change(signals: TickSignals) -> None:
        row, at = signals.metrics[Kind.GPU]["power_watts"], signals.place(Kind.GPU, job.target.gpu)
        last.append(float(np.round(row[at])))
        row[at] = last[0]

    each_tick(job, change)


PAIRS = (
    ScenarioPair(
        JobScenario(name="GPU off the bus (Xid 79)", kind="gpu", fault=True, at=_gpu, happen=as_drill("GPU falls off the bus (Xid 79)")),
        JobScenario(name="mild Xid (43, 63, 92, 37), training goes on", kind="gpu", fault=False, happen=as_drill("mild Xid (43, 63, 92, 37), training goes on")),
    ),
    ScenarioPair(
        JobScenario(name="GPU breaks (Xid that asks for a reset)", kind="gpu", fault=True, at=_gpu, happen=as_drill("GPU breaks (Xid that asks for a reset)")),
        JobScenario(name="Xid of another job's GPU", kind="gpu", fault=False, happen=as_drill("Xid of another job's GPU")),
    ),
    ScenarioPair(
        JobScenario(name="one GPU is throttled by heat", kind="slow compute", fault=True, at=_gpu, happen=alone(_throttled)),
        JobScenario(name="one GPU is hot, and as fast as ever", kind="slow compute", fault=False, happen=alone(_hot)),
    ),
    ScenarioPair(
        JobScenario(name="power cap on all GPUs", kind="slow job", fault=True, happen=alone(_power_cap)),
        JobScenario(name="a warm room", kind="slow job", fault=False, happen=as_drill("a warm room")),
    ),
    ScenarioPair(
        JobScenario(name="a row of memory is remapped after an ECC error, training goes on", kind="gpu", fault=True, at=_gpu, informs=True, happen=alone(_remapped)),
        JobScenario(name="ECC errors that were corrected", kind="gpu", fault=False, happen=alone(_corrected)),
    ),
    ScenarioPair(
        JobScenario(name="NVLink errors, exchanges take longer", kind="nvlink", fault=True, at=_gpu, happen=alone(_nvlinks)),
        JobScenario(name="few NVLink errors, nobody waits", kind="nvlink", fault=False, happen=alone(_few_nvlink_errors)),
    ),
    ScenarioPair(
        JobScenario(name="a GPU draws 25 to 60 % less power", kind="gpu", fault=True, at=_gpu, informs=True, happen=as_drill("a GPU takes 25 to 60 % less power")),
        JobScenario(name="a GPU draws 5 % more power", kind="gpu", fault=False, happen=alone(_little_more_power)),
    ),
    ScenarioPair(
        JobScenario(name="a power meter is stuck", kind="telemetry", fault=True, at=_gpu, sick=False, informs=True, happen=alone(_stuck)),
        JobScenario(name="all GPUs are at their power limit", kind="telemetry", fault=False, happen=alone(_at_the_limit)),
    ),
)
