"""Kinds of faults, in words that any detector can say, and what the causes of our diagnosis are of these."""

from collections.abc import Mapping

KINDS = (
    "slow compute", "slow job", "slow communication", "slow input", "garbage collection", "contention", "hang", "death", "out of memory", "program", "gpu", "nvlink", "link", "network", "switch",
    "storage", "node", "telemetry", "clock", "loss", "gradient", "corruption", "data",
)  # fmt: skip
"""Of `kind` in labels and verdicts."""

_CAUSES: Mapping[str, tuple[str, ...]] = {
    "slow compute": ("slow worker", "slow node", "slower worker", "slower node", "slower from the start", "slow worker off the critical path", "unequal compute"),
    "slow job": ("job slow", "throughput lost", "unequal stages", "unequal work"),
    "slow communication": ("slow communication", "slow link"),
    "slow input": ("slow input", "input stalled"),
    "garbage collection": ("garbage collection",),
    "contention": ("host contended", "cpu quota"),
    "hang": ("python hang", "worker stopped", "job stalled", "collective timeout", "collective mismatch", "pause"),
    "death": ("worker killed", "worker exited", "worker ended early"),
    "out of memory": ("out of memory",),
    "program": ("exception", "illegal memory access", "cuda error", "program error on the gpu", "thread exception"),
    "gpu": ("gpu fault", "gpu lost", "gpu error", "gpu notice", "ecc error", "gpu driver error", "unlike its peers"),
    "nvlink": ("nvlink error",),
    "link": ("link down", "link degraded", "link errors"),
    "network": ("network error", "quorum lost"),
    "switch": ("switch down",),
    "storage": ("storage error", "storage hung", "storage read-only", "storage slow"),
    "node": ("node lost", "launcher lost", "launcher stopped", "preempted", "preemption notice", "node state", "node unused", "job waiting"),
    "telemetry": ("telemetry late", "telemetry failing", "stuck reading", "doubtful timers"),
    "clock": ("clock skewed",),
    "loss": ("loss not finite", "bad step", "loss spike", "loss risen", "loss plateau", "loss scale collapsed"),
    "gradient": ("gradient norm jump",),
    "corruption": ("silent corruption",),
    "data": ("repeated data",),
}
_KIND_OF = {cause: kind for kind, causes in _CAUSES.items() for cause in causes}
_OF_RULES = {"gpu_nvlink": "nvlink", "gpu_fabric": "nvlink", "gpu": "gpu", "node_clock": "clock", "node_network": "network", "node": "contention", "mount": "storage", "worker": "contention"}
"""Beginning of a rule's name → kind; the first that fits counts."""


def kind_of(cause: str, findings: tuple[str, ...] = (), accused: frozenset[str] = frozenset()) -> str:
    """Of an incident's cause; where a rule fired, of the rule; of a network error that accuses a link or a switch, of that. '' = of none of these."""
    rules = [finding.removeprefix("rule.") for finding in findings if finding.startswith("rule.")]
    if cause == "rule fired" and rules:
        return next((kind for begin, kind in _OF_RULES.items() if rules[0].startswith(begin)), "")
    kind = _KIND_OF.get(cause, "")
    return next((part for part in ("switch", "link") if part in accused), kind) if kind == "network" else kind
