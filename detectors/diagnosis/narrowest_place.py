"""Lines that say where a fault is where that is no worker, GPU or node: a mount, a file, a line of code; and which other jobs share a host.

Lines of evidence, and no culprits: plans know nodes, workers and GPUs, and the same fault must keep its name while more of it is seen. None where nothing is known.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from eagle_eye.topology import node_of
from eagle_eye.types import Evidence, Finding, Kind, Topology

MOUNT_STATES: Mapping[str, str] = {"storage.hung": "hangs", "storage.read_only": "has become read-only", "storage.slow": "is slow"}
"""Kind of finding → what it says of a mount."""
SHOWN = 4
"""Names in a line; of more the number is told."""
CONTENDED = frozenset({"host contended", "cpu quota"})
"""Causes that another job on the host may be behind."""
_REFUSED = re.compile(r"\S+ at (/.*): (?:.* free there|the free space is unknown)")
"""Of a file that storage refused (detectors/exceptions.py)."""
_CODE = re.compile(r"at (\S.*:\d+\b.*)")
"""The innermost line of the user's own code (detectors/exceptions.py)."""
_Found = tuple[str, Finding]


def narrowest_place(roots: Sequence[Finding], parts: Sequence[Finding], cause: str, topology: Topology) -> Iterator[Evidence]:
    """For an incident with these roots, among these parts."""
    refused = _said(roots, _REFUSED)
    yield from _mounts(parts if refused else roots, dict.fromkeys(path for path, _ in refused))
    if len(roots) > 1:
        yield from _alike(refused, roots, "the file {}, which {} were refused", topology)
        yield from _alike(_said(roots, _CODE), roots, "{}, in {}", topology)
    if cause in CONTENDED:
        yield from _other_jobs(roots, topology)


def _said(roots: Sequence[Finding], form: re.Pattern[str]) -> list[_Found]:
    """What the first line of that form names, for each root that has one."""
    found = ((next((match[1] for line in root.evidence if (match := form.fullmatch(line.text))), ""), root) for root in roots)
    return [(name, root) for name, root in found if name]


def _alike(found: Sequence[_Found], roots: Sequence[Finding], words: str, topology: Topology) -> Iterator[Evidence]:
    """Where all of them name the same."""
    if len(found) == len(roots) and len({name for name, _ in found}) == 1:
        nodes = {node for _, root in found if (node := node_of(root.entity, topology))}
        who = f"{len(found)} workers" + (f" on {len(nodes)} nodes" if len(nodes) > 1 else "")
        yield Evidence(text=f"where: {words.format(found[0][0], who)}")


def _mounts(findings: Sequence[Finding], refused: Mapping[str, None]) -> Iterator[Evidence]:
    """Mounts that are broken on several nodes, or that hold a file which was refused."""
    broken: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        if finding.entity.kind is Kind.MOUNT and finding.kind in MOUNT_STATES:
            node, _, point = finding.entity.name.partition("/")
            broken.setdefault((f"/{point}", finding.kind), []).append(node)
    for (point, kind), nodes in broken.items():
        held = [path for path in refused if path == point or path.startswith(f"{point.rstrip('/')}/")]
        state, on = MOUNT_STATES[kind], sorted(set(nodes))
        if refused and held:
            yield Evidence(text=f"where: mount {point} on {_names(on)}, which {state} and holds {held[0]}")
        elif not refused and len(on) > 1:
            yield Evidence(text=f"where: mount {point}, which {state} on {len(on)} nodes ({_names(on)}): its server or what lies between, rather than these nodes")


def _other_jobs(roots: Sequence[Finding], topology: Topology) -> Iterator[Evidence]:
    """Those that have, or had a while ago, workers on the same nodes; of another tenant only that there are some."""
    job = roots[0].job
    nodes = {node for root in roots if (node := node_of(root.entity, topology))}
    others = {other for other, workers in topology.jobs.items() if other != job and any(topology.workers.get(worker) in nodes for worker in workers)}
    mine = sorted(other for other in others if other.partition("/")[0] == job.partition("/")[0])
    foreign = len(others) - len(mine)
    told = [*mine[:SHOWN], *([f"{len(mine) - SHOWN} more"] if len(mine) > SHOWN else []), *([f"{foreign} of other tenants"] if foreign else [])]
    if told:
        yield Evidence(text=f"where: other jobs have workers on {_names(sorted(nodes))}, or had a while ago: {', '.join(told)}")


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
