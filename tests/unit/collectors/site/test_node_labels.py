"""Labels of a node in Kubernetes, as files hold them."""

import json
from pathlib import Path

import pytest

from collectors.site.node_labels import RACK_LABELS, SWITCH_LABELS, ZONE_LABELS, NodeLabels
from eagle_eye.types import NodePlace

LABELS = {"app": "eagle-eye", "topology.kubernetes.io/zone": "eu-1a", "topology.kubernetes.io/region": "eu-1", "network.topology.nvidia.com/block": "leaf-7", "nvidia.com/gpu.clique": "c.1"}
PLACE = NodePlace(switch="leaf-7", rack="c.1", zone="eu-1a", source="labels")


def labels(*files: Path, switch: tuple[str, ...] = SWITCH_LABELS) -> NodeLabels:
    return NodeLabels([str(file) for file in files], switch=switch, rack=RACK_LABELS, zone=ZONE_LABELS)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f'{name}="{value}"' for name, value in LABELS.items()) + "\n",
        json.dumps(LABELS),
        json.dumps({"kind": "Node", "metadata": {"name": "n1", "labels": LABELS}}),
    ],
)
def test_what_the_downward_api_or_kubectl_has_written(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels").write_text(text)
    assert labels(tmp_path / "none", tmp_path / "labels").place() == PLACE


def test_labels_of_a_site_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text('example.com/tor="tor-3"\n')
    assert labels(tmp_path / "labels", switch=("example.com/tor",)).place() == NodePlace(switch="tor-3", source="labels")


def test_labels_that_say_nothing_of_a_place_are_none(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text('app="eagle-eye"\n')
    known = labels(tmp_path / "labels")
    assert known.place() == NodePlace()
    assert known.problem == ""


@pytest.mark.parametrize("content", [b"no label", b"{", b'{"metadata": 7}', b"[]", b'{"metadata": {"labels": []}}', b"\xff=", b"{" * 100_000, b"a" * (2 << 20)])
def test_what_is_no_list_of_labels_is_named_and_changes_nothing_that_is_known(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "labels"
    file.write_text(json.dumps(LABELS))
    known = labels(file)
    known.place()
    file.write_bytes(content)
    assert known.place() == PLACE
    assert known.problem.startswith(f"{file}: ")
    file.unlink()
    assert known.place() == NodePlace()
    assert known.problem == ""


def test_values_that_no_label_can_have_are_none(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text(json.dumps({"nvidia.com/gpu.clique": "x" * 500, "network.topology.nvidia.com/leaf": "a\0b"}))
    assert labels(tmp_path / "labels").place() == NodePlace()
