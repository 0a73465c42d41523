"""Nodes that are lost, crowded, changed or out of sight."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, TickSignals
from eagle_eye.app.evaluation.drill_corpus.kinds.of_nodes import goes_silent
from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import (
    JobScenario,
    ScenarioPair,
    alone,
    as_drill,
    its_node,
)
from eagle_eye.types import Kind

from .step_changes import each_tick, reads, slower

SERVER = "server"
AHEAD_S, LITTLE_S = 40.0, 0.2
LOOKS_EVERY_S = 600.0
OF_A_NODE = 32
DRIVERS = ("550.90.07", "570.86.15")


def _agent_is_gone(job: DrillJob) -> None:
    """Nothing is read of the node any more; its launcher's session stands, and its workers train on."""
    goes_silent(job, frozenset({job.target.node}), job.onset)
    job.tell(job.onset + 0.5, "session.lost", job.node, node=SERVER, role="agent")


def _clock_ahead(job: DrillJob) -> None:
    reads(job, Kind.NODE, job.target.node, {"clock_offset_s": AHEAD_S})

    def change(signals: TickSignals) -> None:
        signals.clocks[job.target.node] = AHEAD_S
        signals.reporting[job.target.node] += AHEAD_S

    each_tick(job, change)


def _clock_a_little_ahead(job: DrillJob) -> None:
    reads(job, Kind.NODE, job.target.node, {"clock_offset_s": LITTLE_S})


def _driver_changes(job: DrillJob) -> None:
    """As the node's agent tells, once the node is back in the job."""
    at = job.onset + 0.2
    job.tell(at, "node.changed", job.node, what="nvidia driver", before=DRIVERS[0], after=DRIVERS[1], known=at - LOOKS_EVERY_S, seen=at - 1.0)


def _slow_since_its_driver(job: DrillJob) -> None:
    _driver_changes(job)
    slower(job, job.indices(job.target.node), 1.25)


def _crowded(job: DrillJob) -> None:
    """Another job's processes have the processors of the node."""
    who, times = job.indices(job.target.node), float(job.rng.uniform(1.4, 1.9))
    slower(job, who, times)
    reads(job, Kind.NODE, job.target.node, {"cpu_percent": 99.0, "load_1": 180.0})

    def change(signals: TickSignals) -> None:
        signals.metrics[Kind.WORKER]["runqueue_percent"][who] = np.float32(100.0 * (1.0 - 1.0 / times))

    each_tick(job, change)


def _busy(job: DrillJob) -> None:
    """Its loaders use the processors, and nobody waits for one."""
    reads(job, Kind.NODE, job.target.node, {"cpu_percent": 85.0, "load_1": 80.0})


def _quota_is_wide(job: DrillJob) -> None:
    """There is one, and it is seldom used up."""

    def change(signals: TickSignals) -> None:
        rows, who = signals.metrics[Kind.WORKER], job.indices(job.target.node)
        rows["cpu_quota"][who], rows["throttled_percent"][who] = 16.0, 1.0

    each_tick(job, change)


PAIRS = (
    ScenarioPair(
        JobScenario(name="node lost", kind="node", fault=True, at=its_node, peers=16, happen=as_drill("node lost")),
        JobScenario(name="node preempted, as was told", kind="node", fault=False, peers=16, happen=as_drill("node preempted")),
    ),
    ScenarioPair(
        JobScenario(name="launcher killed with its workers", kind="node", fault=True, at=its_node, peers=16, happen=as_drill("launcher killed with its workers")),
        JobScenario(name="node is to be drained, training goes on", kind="node", fault=False, peers=16, happen=as_drill("node is to be drained")),
    ),
    ScenarioPair(
        JobScenario(name="too few launchers, nobody trains", kind="node", fault=True, happen=as_drill("too few launchers, nobody trains")),
        JobScenario(name="too few launchers, training goes on", kind="node", fault=False, happen=as_drill("too few launchers, training goes on")),
    ),
    ScenarioPair(
        JobScenario(name="telemetry of a healthy node is gone", kind="telemetry", fault=True, at=its_node, sick=False, informs=True, peers=16, happen=alone(_agent_is_gone)),
        JobScenario(name="an agent begins again", kind="telemetry", fault=False, peers=16, happen=as_drill("agent restarts")),
    ),
    ScenarioPair(
        JobScenario(name="the clock of a node is off", kind="clock", fault=True, at=its_node, sick=False, informs=True, peers=16, happen=alone(_clock_ahead)),
        JobScenario(name="the clock of a node is off by a fifth of a second", kind="clock", fault=False, peers=16, happen=alone(_clock_a_little_ahead)),
    ),
    ScenarioPair(
        JobScenario(name="a node is slow since its driver was changed", kind="slow compute", fault=True, at=its_node, peers=OF_A_NODE, happen=alone(_slow_since_its_driver)),
        JobScenario(name="the driver of a node was changed", kind="slow compute", fault=False, peers=OF_A_NODE, happen=alone(_driver_changes)),
    ),
    ScenarioPair(
        JobScenario(name="other programs have the processors of a node", kind="contention", fault=True, at=its_node, sick=False, informs=True, peers=16, happen=alone(_crowded)),
        JobScenario(name="a busy node on which nobody waits", kind="contention", fault=False, peers=16, happen=alone(_busy)),
    ),
    ScenarioPair(
        JobScenario(name="CPU quota of a node's workers is used up", kind="contention", fault=True, at=its_node, sick=False, informs=True, peers=16, happen=as_drill("CPU quota of a node's workers")),
        JobScenario(name="a wide CPU quota", kind="contention", fault=False, peers=16, happen=alone(_quota_is_wide)),
    ),
)
