"""Which metrics rules may be about, and what is doubtful of a rule that has no mistake."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from collectors import collective, fabric, flight_recorder, host, nccl_inspector, storage
from collectors.log.printed_values import NAMES as PRINTED_NAMES
from collectors.nvml.mig import MIG_NAMES
from collectors.nvml.watched_gpu import NAMES as GPU_NAMES
from collectors.site.exporter_table import shipped_metrics
from collectors.worker.watched_worker import NAMES as WORKER_NAMES
from detectors.rules.rule import MetricRule, RuleProblem
from eagle_eye.types import Kind


def known_metrics() -> Mapping[Kind, frozenset[str]]:
    """Those that the collectors of this release read."""
    found: dict[Kind, set[str]] = {
        Kind.GPU: {*GPU_NAMES, *MIG_NAMES},
        Kind.NODE: set(host.NAMES),
        Kind.LINK: set(fabric.NAMES),
        Kind.MOUNT: set(storage.NAMES),
        Kind.WORKER: {*WORKER_NAMES, *collective.NAMES, *PRINTED_NAMES, *nccl_inspector.NAMES, *flight_recorder.NAMES},
    }
    for metric in shipped_metrics():
        found[Kind(metric.kind)].add(metric.name)
    return {kind: frozenset(names) for kind, names in found.items()}


def doubts(rules: Iterable[MetricRule]) -> Iterator[RuleProblem]:
    """Metrics that no collector of this release reads: of the site's own, or a slip of the pen."""
    known = known_metrics()
    for rule in rules:
        kind = rule.table.entity
        for condition in rule.conditions:
            if condition.metric not in known[kind]:
                near = get_close_matches(condition.metric, known[kind], n=1)
                meant = f"did you mean {near[0]}?" if near else "see docs/wire.md for those that there are"
                yield RuleProblem(rule.file, rule.line, f"{rule.name}: no collector of this release reads {condition.metric} of a {kind}; it counts if one of yours does; {meant}")
