"""Switch, rack and zone of a node by its labels in Kubernetes, read from a file: the agent asks no API server.

The file is what the downward API writes (`key="value"` a line; of a pod that has its node's topology labels), or JSON: the labels, or the node as
`kubectl get node NAME -o json` prints it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from eagle_eye.regular_file import read_owned
from eagle_eye.types import NodePlace

SOURCE = "labels"
FILES = ("/etc/eagle-eye/node-labels", "/etc/podinfo/labels")
SWITCH_LABELS = (
    "network.topology.nvidia.com/leaf", "network.topology.nvidia.com/block", "network.topology.kubernetes.io/block", "topology.k8s.aws/network-node-layer-3",
    "topology.kubernetes.io/network-level-1",
)  # fmt: skip
"""Written by NVIDIA's topograph (`block`: the switches at which nodes hang), by Amazon EKS (layer 3 is the nearest), by older topographs."""
RACK_LABELS = (
    "topology.kubernetes.io/rack", "cloud.google.com/gce-topology-subblock", "network.topology.nvidia.com/accelerator",
    "network.topology.kubernetes.io/accelerator", "nvidia.com/gpu.clique",
)  # fmt: skip
"""A rack by its name; a sub-block of Google's (a rack); an NVLink domain of several nodes, by topograph or GPU feature discovery."""
ZONE_LABELS = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/region")
"""The narrowest that is known."""
LARGEST = 1 << 20
LONGEST_VALUE = 400
_LINE = re.compile(r'\s*([^=\s]+)="((?:[^"\\]|\\.)*)"\s*')


class NodeLabels:
    """Reads the first file that is there, each time: it is small, and replaced when a label changes."""

    def __init__(self, files: Sequence[str], *, switch: Sequence[str], rack: Sequence[str], zone: Sequence[str]) -> None:
        """`switch`, `rack`, `zone`: labels that may hold it; the first that is present counts."""
        self.problem = ""
        """What cannot be used, and how to mend it; '' is none."""
        self._files = [Path(file) for file in files]
        self._switch, self._rack, self._zone = switch, rack, zone
        self._known = NodePlace()

    def place(self) -> NodePlace:
        """Of this node; without a source where no label says anything. A file that cannot be used changes nothing of what is known."""
        path = next((path for path in self._files if path.exists()), None)
        self.problem = ""
        if path is None:
            self._known = NodePlace()
            return self._known
        try:
            labels = labels_of(read_owned(path, LARGEST)[0])
        except (OSError, ValueError, RecursionError) as error:
            self.problem = f"{path}: {error}; write labels as JSON, or one key=\"value\" a line"
            return self._known
        switch, rack, zone = (_first(labels, names) for names in (self._switch, self._rack, self._zone))
        self._known = NodePlace(switch=switch, rack=rack, zone=zone, source=SOURCE if switch or rack or zone else "")
        return self._known


def labels_of(content: bytes) -> dict[str, str]:
    """Label → value. Raises ValueError for what is neither form.

    >>> labels_of(b'topology.kubernetes.io/zone="eu-1a"')
    {'topology.kubernetes.io/zone': 'eu-1a'}
    """
    text = content.decode()
    if text.lstrip().startswith("{"):
        return _labels_in(msgspec.json.decode(text))
    lines = [line for line in text.splitlines() if line.strip()]
    found = [_LINE.fullmatch(line) for line in lines]
    if wrong := next((line for line, match in zip(lines, found, strict=True) if match is None), ""):
        raise ValueError(f"{wrong[:60]!r} is no label")
    return {match[1]: re.sub(r"\\(.)", r"\1", match[2]) for match in found if match}


def _labels_in(told: Any) -> dict[str, str]:
    """Of the labels themselves, or of the node."""
    if isinstance(told, dict) and isinstance(told.get("metadata"), dict):
        told = told["metadata"].get("labels")
    if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
        raise ValueError("it holds no labels")
    return told


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    values = (labels.get(name, "") for name in names)
    return next((value for value in values if value and len(value) <= LONGEST_VALUE and "\0" not in value), "")
