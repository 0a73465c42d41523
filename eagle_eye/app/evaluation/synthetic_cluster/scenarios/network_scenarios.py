"""Links, and switches that two jobs share."""

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_frames import PORTS
from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, StepSignals, TickSignals
from eagle_eye.app.evaluation.drill_corpus.kinds.of_parts import link_goes_down, link_of
from eagle_eye.app.evaluation.drill_corpus.kinds.of_shared_parts import switch_of
from eagle_eye.app.evaluation.drill_corpus.kinds.signs import peers_cry, restarts, stands_still
from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import (
    JobScenario,
    Parts,
    ScenarioPair,
    Victims,
    alone,
    as_drill,
)
from eagle_eye.types import Entity, Kind

from .step_changes import each_step, each_tick, reads, waits_more

FLAPS, FLAP_EVERY_S, DOWN_S = 5, 8.0, 3.0
HALF_RATE = 200e9 / 8
OF_TWO = 64
"""Workers of each of two jobs: nodes at more than one switch."""


def _link(jobs: Victims) -> Parts:
    return (link_of(jobs[0].target.node, 0),)


def _switch(jobs: Victims) -> Parts:
    return (Entity(kind=Kind.SWITCH, name=switch_of(jobs)),)


def _shared_node(jobs: Victims) -> Parts:
    return (Entity(kind=Kind.NODE, name=next(node for node in jobs[0].layout.nodes if node in jobs[1].layout.nodes)),)


def _breaks(job: DrillJob) -> None:
    """A port goes down, the connections through it break, and nobody has ended."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    link_goes_down(job, job.target.node, 0, at)
    stands_still(job, at)
    peers_cry(job, at + 0.6)
    restarts(job, at)


def _flap(job: DrillJob, at: float) -> None:
    """A port is down for some seconds."""
    port = {"device": PORTS[0].partition(":")[0], "port": 1, "rail": 0}
    down = {**port, "state": "down", "rate_gbit_per_s": "", "former_rate_gbit_per_s": 400}
    up = {**port, "state": "active", "rate_gbit_per_s": 400, "former_rate_gbit_per_s": 400}
    job.tell(at, "link.down", link_of(job.target.node, 0), node=job.target.node, message="port 1 is down", more=down)
    job.tell(at + DOWN_S, "link.up", link_of(job.target.node, 0), node=job.target.node, message="port 1 is up", more=up)

    def change(signals: TickSignals) -> None:
        active, place = signals.metrics[Kind.LINK]["port_active"], signals.place(Kind.LINK, link_of(job.target.node, 0).name)
        if at <= signals.time < at + DOWN_S and np.isfinite(active[place]):
            active[place] = 0.0

    each_tick(job, change)


def _flaps(job: DrillJob) -> None:
    """Again and again, and each time the exchanges wait for it."""
    begins = [job.onset + 0.4 + FLAP_EVERY_S * number for number in range(FLAPS)]
    for at in begins:
        _flap(job, at)

    def wait(step: StepSignals) -> None:
        if any(at - 1.0 <= step.begin < at + DOWN_S for at in begins):
            step.wait_s += 1.5

    each_step(job, wait)


def _half_rate(job: DrillJob) -> None:
    told = {"device": "mlx5_0", "port": 1, "rail": 0, "state": "active", "rate_gbit_per_s": 200, "former_rate_gbit_per_s": 400}
    job.tell(job.onset + 0.4, "link.degraded", link_of(job.target.node, 0), node=job.target.node, message="it runs at 200 Gbit/s", more=told)
    reads(job, Kind.LINK, link_of(job.target.node, 0).name, {"link_rate_bytes_per_s": HALF_RATE})
    waits_more(job, 0.5)


def _errors(job: DrillJob, per_s: float, wait_s: float) -> None:
    reads(job, Kind.LINK, link_of(job.target.node, 0).name, {"symbol_errors_per_s": per_s})
    waits_more(job, wait_s)


def _broken_connections(job: DrillJob) -> None:
    """All of a sudden, and nothing says why."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    stands_still(job, at)
    peers_cry(job, at + 0.1)
    restarts(job, at)


def _pair_of_two(fault: str, twin: str, kind: str, part: str) -> ScenarioPair:
    at = _switch if part == "switch" else _shared_node
    return ScenarioPair(
        JobScenario(name=f"two jobs: {fault}", kind=kind, fault=True, at=at, jobs=2, peers=OF_TWO, most_stages=1, happen=as_drill(f"two jobs: {fault}")),
        JobScenario(name=f"two jobs: {twin}", kind=kind, fault=False, jobs=2, peers=OF_TWO, most_stages=1, happen=as_drill(f"two jobs: {twin}")),
    )


PAIRS = (
    ScenarioPair(
        JobScenario(name="a port goes down, connections break", kind="link", fault=True, at=_link, happen=alone(_breaks)),
        JobScenario(name="a port goes down once for a moment, training goes on", kind="link", fault=False, happen=alone(lambda job: _flap(job, job.onset + 0.4))),
    ),
    ScenarioPair(
        JobScenario(name="a port goes down again and again, exchanges wait", kind="link", fault=True, at=_link, happen=alone(_flaps)),
        JobScenario(name="a congested link", kind="link", fault=False, happen=as_drill("a congested link")),
    ),
    ScenarioPair(
        JobScenario(name="a link counts errors, exchanges take longer", kind="link", fault=True, at=_link, happen=alone(lambda job: _errors(job, 80.0, 0.4))),
        JobScenario(name="a link counts few errors, nobody waits", kind="link", fault=False, happen=alone(lambda job: _errors(job, 0.4, 0.0))),
    ),
    ScenarioPair(
        JobScenario(name="a link runs at half its rate, exchanges take longer", kind="link", fault=True, at=_link, happen=alone(_half_rate)),
        JobScenario(name="ranks lag, says NCCL, and nobody waits", kind="link", fault=False, happen=as_drill("NCCL says that ranks lag")),
    ),
    ScenarioPair(
        JobScenario(name="connections break, and nothing says why", kind="network", fault=True, happen=alone(_broken_connections)),
        JobScenario(name="a launcher's session breaks, training goes on", kind="network", fault=False, happen=as_drill("launcher's session breaks, training goes on")),
    ),
    _pair_of_two("their switch dies", "ports at different switches go down", "switch", "switch"),
    _pair_of_two("their node dies", "both save a checkpoint", "node", "node"),
)
