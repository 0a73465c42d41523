"""The text of a plan that waits for approval: the same on a terminal and on the approval page."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from eagle_eye.types import Plan, Target
from eagle_eye.writable_text import printable

Shown = Mapping[str, Any]
"""One of the `plans` that the engine's `waiting` returns."""


def plan_of(shown: Shown) -> Plan:
    """The plan itself."""
    return msgspec.convert(shown["plan"], Plan)


def plan_rows(shown: Shown, now: float) -> Iterator[tuple[str, str]]:
    """(what, text), in the order in which a person wants to know; one printable line each. `now`: seconds since 1970."""
    for what, text in _rows(shown, now):
        yield what, printable(text)


def _rows(shown: Shown, now: float) -> Iterator[tuple[str, str]]:
    plan = plan_of(shown)
    yield "plan", f"{plan.id} for incident {plan.incident}"
    yield "job", str(shown["job"])
    yield "cause", str(shown["cause"])
    yield "action", plan.action
    for target in plan.targets:
        yield "target", target_text(target)
    yield "reason", plan.reason or "none is given"
    yield "cost", f"{plan.cost:.0f} weighted GPU-seconds expected, {plan.benefit:.0f} saved"
    for alternative in plan.alternatives:
        yield "instead of", f"{alternative.action}: {alternative.why}"
    for hold in shown["holds"]:
        yield "waits", str(hold)
    yield "digest", str(shown["digest"])
    yield "valid", f"until {time.strftime('%H:%M:%S', time.localtime(plan.expires))}, {max(plan.expires - now, 0):.0f} s from now"


def target_text(target: Target) -> str:
    """What a plan changes in one job, on one line."""
    parts = [f"{target.job} at epoch {target.epoch}"]
    if target.exclude:
        parts.append(f"nodes {', '.join(target.exclude)}")
    if target.swap:
        parts.append(f"{' and '.join(target.swap)} exchange their ranks")
    if target.workers:
        parts.append(f"workers {', '.join(target.workers)}")
    if target.workers_per_node:
        parts.append("resize to workers: " + ", ".join(f"{count} on {node} (now {target.workers_per_node_before.get(node, 0)})" for node, count in target.workers_per_node.items()))
    if target.speeds:
        parts.append("shares by speed: " + ", ".join(f"{worker} {speed:.0%}" for worker, speed in target.speeds.items()))
    if target.resume_step >= 0:
        parts.append(f"back to step {target.resume_step}")
    if target.skip:
        parts.append(f"skip steps {', '.join(map(str, target.skip))}")
    return "; ".join(parts)
