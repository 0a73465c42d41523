"""Switch and rack of a node by Slurm: topology.yaml, else topology.conf beside slurm.conf (both of the plugins tree and block).

A switch is the one that names the node itself, the lowest of the tree; a block (nodes that a scheduler keeps together, such as those of one NVLink
domain) counts as the rack. A line that cannot be used is passed over and named in `problem`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eagle_eye.hostlist import HostlistError, hosts_of
from eagle_eye.regular_file import read_owned
from eagle_eye.types import NodePlace

SOURCE = "slurm"
FOLDERS = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")
"""Where slurm.conf is: of packages, of Debian's older ones, of nodes without a file of their own ("configless")."""
LARGEST = 1 << 20
"""Bytes; a switch with its nodes takes a hundred."""
LARGEST_YAML = 256 << 10
"""The same of YAML, of which Python reads some 100 kB a second."""
LONGEST_NAME = 400
DEEPEST = 50
"""Levels of YAML; a tree of switches takes six."""
EVERY_NODE = "ALL"


class _Group(NamedTuple):
    """Nodes at one switch, or in one block."""

    kind: str
    """switch or block"""
    name: str
    nodes: str
    """Hostlist."""
    where: str
    """In which line."""


class SlurmTopology:
    """Reads the file again only when it has changed."""

    def __init__(self, folders: Sequence[str] = FOLDERS) -> None:
        self.problem = ""
        """What cannot be used, and how to mend it; '' is none."""
        self._folders = [Path(folder) for folder in folders]
        self._version: tuple[str, int, int, int] | None = None
        self._places: dict[str, NodePlace] = {}

    def place_of(self, node: str) -> NodePlace:
        """Its switch and rack; without a source if Slurm does not name it, by its name or by that without a domain."""
        path = next((path for folder in self._folders for path in (folder / "topology.yaml", folder / "topology.conf") if path.exists()), None)
        if path is None:
            self.problem, self._version, self._places = "", None, {}
        else:
            self._refresh(path)
        return next((self._places[name] for name in (node, node.partition(".")[0], EVERY_NODE) if name in self._places), NodePlace())

    def _refresh(self, path: Path) -> None:
        """A file that cannot be read, or is half written, changes nothing of what is known."""
        try:
            status = path.stat()
            version = str(path), status.st_ino, status.st_size, status.st_mtime_ns
            if version == self._version:
                return
            of_yaml = path.suffix == ".yaml"
            text = read_owned(path, LARGEST_YAML if of_yaml else LARGEST)[0].decode()
            self._version = version  # also of one that cannot be used: it is not read again and again
            groups, problems = groups_of_yaml(text) if of_yaml else groups_of_conf(text)
        except (OSError, ValueError, RecursionError) as error:
            self.problem = f"{path}: {_line(error)}; mend it, or let the agent's user read it"
            return
        self._places, refused = _places_of(groups)
        problems = (*problems, *refused)
        self.problem = f"{path}: {problems[0]}{f' (and {len(problems) - 1} more)' if problems[1:] else ''}; what stands there is passed over" if problems else ""


def groups_of_conf(text: str) -> tuple[list[_Group], tuple[str, ...]]:
    """Switches and blocks with nodes of a topology.conf, and what is wrong with other lines. Keys in any case, `\\` continues a line."""
    groups, problems = [], []
    for number, line in _lines(text):
        pairs = {key.lower(): value for key, equals, value in (word.partition("=") for word in line.split()) if equals}
        kind = next((kind for kind in ("switch", "block") if f"{kind}name" in pairs), "")
        if kind and pairs.get("nodes"):
            groups.append(_Group(kind, pairs[f"{kind}name"], pairs["nodes"], f"line {number}"))
        elif not kind and "blocksizes" not in pairs and "blocklevels" not in pairs:
            problems.append(f"line {number} names no switch and no block")
    return groups, tuple(problems)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first one, text) of each line that says something."""
    whole, begin = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].rstrip()
        begin = begin or number
        whole += said.removesuffix("\\")
        if not said.endswith("\\"):
            if whole.strip():
                yield begin, whole
            whole, begin = "", 0
    if whole.strip():
        yield begin, whole


def groups_of_yaml(text: str) -> tuple[list[_Group], tuple[str, ...]]:
    """The same of a topology.yaml: of several topologies the cluster's default counts first. Raises ValueError for what is no such file."""
    topologies = [each for each in _list(_parsed(text)) if isinstance(each, dict)]
    topologies.sort(key=lambda each: each.get("cluster_default") is not True)
    groups = []
    for topology in topologies:
        where = f"topology {topology.get('topology', '')}"[:80]
        for kind, entries in (("switch", _within(topology, "tree", "switches")), ("block", _within(topology, "block", "blocks"))):
            groups += [_Group(kind, _name(entry.get(kind)), _name(entry.get("nodes")), where) for entry in entries if _name(entry.get("nodes"))]
    return groups, () if topologies else ("it holds no list of topologies",)


def _parsed(text: str) -> Any:
    """Raises ValueError."""
    try:
        import yaml
    except ImportError as error:
        raise ValueError("the module yaml is missing (pip install 'eagle-eye[node]')") from error

    class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]  # not the C one: nesting that is too deep ends its process
        """Without aliases, of which a few lines make endless structures, and without depth, which takes seconds to read."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise yaml.YAMLError("it uses an alias (*name): write it out")
            self.depth += 1
            if self.depth > DEEPEST:
                raise yaml.YAMLError(f"it is nested in more than {DEEPEST} levels")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        return yaml.load(text, PlainLoader)  # noqa: S506 -- it builds plain containers alone
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _name(value: Any) -> str:
    """A name may look like a number."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _within(topology: dict[str, Any], kind: str, name: str) -> list[dict[str, Any]]:
    inner = topology.get(kind)
    return [entry for entry in _list(inner.get(name) if isinstance(inner, dict) else None) if isinstance(entry, dict)]


def _places_of(groups: Iterable[_Group]) -> tuple[dict[str, NodePlace], list[str]]:
    """Node → place, and what is wrong with groups that cannot be used. The first switch and the first block that name a node count."""
    found: dict[str, dict[str, str]] = {"switch": {}, "block": {}}
    problems = []
    for group in groups:
        try:
            nodes = hosts_of(group.nodes)
        except HostlistError as error:
            problems.append(f"{group.where}: {error}")
            continue
        if not 0 < len(group.name) <= LONGEST_NAME or "\0" in group.name:
            problems.append(f"{group.where}: a {group.kind} whose name has {len(group.name)} characters")
            continue
        for node in nodes:
            found[group.kind].setdefault(node, group.name)
    switches, blocks = found["switch"], found["block"]
    return {node: NodePlace(switch=switches.get(node, ""), rack=blocks.get(node, ""), source=SOURCE) for node in {**switches, **blocks}}, problems


def _line(error: Exception) -> str:
    """The first line: a parser's message has several."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
