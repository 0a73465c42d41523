"""Lines of kernels with the component (and code of an Xid or SXid) that they are of, and whole logs of nodes with one label each.

Every line goes through collector, detectors and diagnosis on a node without a job; a log whose label says that it is healthy must make no incident.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.labelled_files import objects_of, text_of
from eagle_eye.app.evaluation.log_chain import IDLE_NODE, LogChain
from eagle_eye.event_attributes import integer_attribute
from eagle_eye.types import Event

GOAL = 0.98
COMPONENTS = {
    "cpu": ("cpu",), "disk": ("disk", "filesystem"), "pkg/disk": ("disk", "filesystem"), "memory": ("memory",), "nvidia/infiniband": ("network",),
    "nvidia/infiniband/store": ("network",), "nvidia/infiniband/class": ("network",), "nvidia/nccl": ("process",), "nvidia/nvlink": ("gpu",), "nvidia/peermem": ("gpu",),
    "nvidia/sxid": ("nvswitch",), "nvidia/xid": ("gpu",), "nvidia/hw-slowdown": ("gpu",), "os": ("kernel", "memory"), "pkg/fault-injector": ("gpu",), "pkg/pstore": ("kernel",),
}  # fmt: skip
"""The label of a line → our components."""
NO_LOG = re.compile(r"\A(?:ib_core \d|expected |/dev/mapper|nvme\d\w* should|mlx5_\d+ (?:should|device should)|should have|\+-)")
"""What no kernel prints: names of devices and sentences of a monitor's tests about them."""
WORDS = re.compile(r"error|fail|xid", re.IGNORECASE)
"""What people search for with grep."""
HEALTHY = re.compile(r"benign|healthy|good|normal|midnight")
MARKS = (("oom", "memory"), ("segfault", "process"), ("lockup", "cpu"), ("disk", "disk"), ("nvswitch", "nvswitch"), ("sxid", "nvswitch"))
"""A word of the label of a whole log → the component that its errors must show."""


class Said(NamedTuple):
    """What an event says of a line."""

    component: str
    code: str
    number: int


def said(event: Event) -> Said:
    """Xids and lost GPUs have events of their own, others kernel.error and kernel.notice."""
    if event.name == "gpu.xid":
        return Said("gpu", "xid", integer_attribute(event, "code"))
    if event.name == "gpu.lost":
        return Said("gpu", "fell_off_the_bus", -1)
    return Said(event.attributes.get("component", ""), event.attributes.get("code", ""), integer_attribute(event, "number"))


def figures(folder: Path) -> Iterator[Figure]:
    """Of lines, then of whole logs. Raises DataSetError."""
    rows = objects_of(folder / "kernel_lines.jsonl", "line", "component", "kind", "code")
    with LogChain() as chain:
        yield from _of_lines([row for row in rows if not NO_LOG.search(str(row["line"]))], len(rows), chain)
        for row in objects_of(folder / "labels.json", "file", "label"):
            if str(row["file"]).startswith("kernel/"):
                yield _of_log(folder / str(row["file"]), str(row["label"]), chain)


def _of_lines(rows: Sequence[dict[str, Any]], of: int, chain: LogChain) -> Iterator[Figure]:
    events = [chain.kernel_events([str(row["line"])]) for row in rows]
    right = [_is_right(row, told) for row, told in zip(rows, events, strict=True)]
    coded = [good for row, good in zip(rows, right, strict=True) if row["kind"]]
    by_grep = sum(bool(WORDS.search(str(row["line"]))) for row in rows)
    wrong = [f"{row['component']}: {row['line']!s:.60}" for row, good in zip(rows, right, strict=True) if not good]
    yield Figure(
        what=f"component and code of kernel lines ({of - len(rows)} others are none of a log)", figure=f"{sum(right)} of {len(rows)}", goal=f"≥ {GOAL:.0%}", met=sum(right) >= GOAL * len(rows),
        others=f"grep for error, fail and xid finds {by_grep}", reason="; ".join(wrong[:3]),
    )  # fmt: skip
    yield Figure(what="codes of Xids and SXids", figure=f"{sum(coded)} of {len(coded)}", goal="all", met=all(coded), others="gpud's catalogue, from whose tests the lines are")
    errors = [told for told in events if any(event.name in ("kernel.error", "gpu.xid", "gpu.lost") for event in told)]
    opened = sum(bool(chain.judge(told, job=IDLE_NODE).incidents) for told in errors)
    yield Figure(what="lines that tell of an error → incident", figure=f"{opened} of {len(errors)}", goal="all", met=opened == len(errors))


def _is_right(row: dict[str, Any], events: Sequence[Event]) -> bool:
    """One event, of the component, and with the code where the label has one."""
    if len(events) != 1 or said(events[0]).component not in COMPONENTS.get(str(row["component"]), ()):
        return False
    return not row["kind"] or said(events[0])[1:] == (row["kind"], row["code"])


def _of_log(path: Path, label: str, chain: LogChain) -> Figure:
    judged = chain.judge(chain.kernel_events(text_of(path).splitlines()), job=IDLE_NODE)
    found = {said(event) for event in judged.events if event.name != "kernel.notice"}
    codes, components = {each.number for each in found}, {each.component for each in found}
    words = f"{', '.join(sorted({_word(each) for each in found})) or 'no error'}; incidents: {len(judged.incidents)}"
    if HEALTHY.search(label):
        return Figure(what=f"{path.name}: {label}", figure=words, goal="no error, no incident", met=not found and not judged.incidents)
    expected = {int(code) for code in re.findall(r"xid_(\d+)", label)}
    parts = {component for word, component in MARKS if word in label}
    met = expected <= codes and parts <= components and bool(judged.incidents) and bool(expected or parts)
    goal = ", ".join([*(f"xid {code}" for code in sorted(expected)), *sorted(parts)])
    return Figure(what=f"{path.name}: {label}", figure=words, goal=f"{goal or 'none that we know of this label'}, an incident", met=met if goal else None)


def _word(each: Said) -> str:
    return f"{each.component} {each.number}" if each.number >= 0 else each.component
