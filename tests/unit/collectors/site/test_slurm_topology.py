"""Switches and racks of nodes by Slurm's files."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.site.slurm_topology import SlurmTopology, groups_of_conf, groups_of_yaml
from eagle_eye.types import NodePlace

TREE = """# two leaves below a spine
SwitchName=leaf-1 Nodes=gpu[001-016],login1 LinkSpeed=400
switchname=leaf-2  nodes=gpu[017-032] \\
  LinkSpeed=400     # as delivered
SwitchName=spine Switches=leaf-[1-2]
"""
BLOCKS = """
BlockName=nvl72-a Nodes=gpu[001-018]
BlockName=nvl72-b Nodes=gpu[019-036]
BlockSizes=18,36
"""
YAML = """
---
- topology: blocks
  block:
    block_sizes: [18, 36]
    blocks:
      - block: nvl72-a
        nodes: gpu[001-018]
- topology: other
  tree:
    switches:
      - switch: wrong
        nodes: gpu[001-099]
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf-[1-2]
      - switch: leaf-1
        nodes: gpu[001-016]
      - switch: 17
        nodes: gpu017
- topology: flat
  flat: true
"""


def place(folder: Path, node: str) -> NodePlace:
    return SlurmTopology([str(folder)]).place_of(node)


def test_a_node_hangs_at_the_lowest_switch_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(TREE)
    assert place(tmp_path, "gpu016") == NodePlace(switch="leaf-1", source="slurm")
    assert place(tmp_path, "gpu017.cluster.example").switch == "leaf-2"
    assert place(tmp_path, "gpu033") == NodePlace()


def test_a_block_is_a_rack(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(BLOCKS)
    topology = SlurmTopology([str(tmp_path)])
    assert topology.place_of("gpu019") == NodePlace(rack="nvl72-b", source="slurm")
    assert topology.problem == ""


def test_the_yaml_of_newer_ones_counts_before_and_its_default_before_the_others(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(TREE)
    (tmp_path / "topology.yaml").write_text(YAML)
    assert place(tmp_path, "gpu001") == NodePlace(switch="leaf-1", rack="nvl72-a", source="slurm")
    assert place(tmp_path, "gpu017").switch == "17"
    assert place(tmp_path, "gpu020").switch == "wrong", "no default names it"


def test_a_file_that_was_changed_is_read_again_and_one_that_is_gone_says_nothing(tmp_path: Path) -> None:
    path, topology = tmp_path / "topology.conf", SlurmTopology(["/none", str(tmp_path)])
    assert topology.place_of("gpu001") == NodePlace()
    path.write_text(TREE)
    assert topology.place_of("gpu001").switch == "leaf-1"
    path.write_text(TREE.replace("leaf-1", "leaf-one"))
    assert topology.place_of("gpu001").switch == "leaf-one"
    path.unlink()
    assert topology.place_of("gpu001") == NodePlace()


def test_a_line_that_cannot_be_used_is_named_and_the_others_count(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(f"{TREE}SwitchName=leaf-3 Nodes=gpu[33-\nnonsense\n")
    topology = SlurmTopology([str(tmp_path)])
    assert topology.place_of("gpu001").switch == "leaf-1"
    assert "line 7 names no switch" in topology.problem
    assert "(and 1 more)" in topology.problem


@pytest.mark.parametrize("text", ["- topology: [", "x" * (1 << 20), "[" * 1_500, "a: &a [x]\nb: [*a, *a]\n"])
def test_a_file_that_cannot_be_read_is_named_and_changes_nothing_that_is_known(tmp_path: Path, text: str) -> None:
    path, topology = tmp_path / "topology.yaml", SlurmTopology([str(tmp_path)])
    path.write_text(YAML)
    assert topology.place_of("gpu001").switch == "leaf-1"
    path.write_text(text)
    assert topology.place_of("gpu001").switch == "leaf-1"
    assert str(path) in topology.problem
    path.write_text(YAML)
    topology.place_of("gpu001")
    assert topology.problem == ""


def test_a_fifo_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "topology.conf")
    topology = SlurmTopology([str(tmp_path)])
    assert topology.place_of("gpu001") == NodePlace()
    assert "no regular file" in topology.problem


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25, deadline=None)
@given(st.integers(0, len(TREE)), st.integers(0, len(YAML)), st.text(max_size=20))
def test_a_torn_or_mixed_file_raises_nothing_but_its_own_error(conf: int, yaml: int, between: str) -> None:
    groups_of_conf(TREE[:conf] + between + TREE[conf:])
    try:
        groups_of_yaml(YAML[:yaml] + between + YAML[yaml:])
    except ValueError:
        return
