"""Places of nodes by the configuration."""

from eagle_eye import config
from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.types import NodePlace

TEXT = """
[[topology.nodes]]
hosts = "node007"
switch = "leaf-9"

[[topology.nodes]]
hosts = "node[001-008]"
switch = "leaf-1"
rack = "r1"

[[topology.nodes]]
hosts = "node*"
zone = "hall-a"
rails = ["mlx5_1:1", "mlx5_0:1"]
"""
PLACES = ConfiguredPlaces(config.parse(TEXT).topology)


def test_the_first_table_that_names_a_node_counts_for_each_value() -> None:
    assert PLACES.of("node001") == NodePlace(switch="leaf-1", rack="r1", zone="hall-a", source="configuration")
    assert PLACES.of("node007") == NodePlace(switch="leaf-9", rack="r1", zone="hall-a", source="configuration")
    assert PLACES.of("node009") == NodePlace(zone="hall-a", source="configuration")
    assert PLACES.rails("node003") == ("mlx5_1:1", "mlx5_0:1")


def test_a_node_may_be_called_with_its_domain() -> None:
    assert PLACES.of("node001.cluster.example").switch == "leaf-1"


def test_a_node_that_no_table_names_has_no_place() -> None:
    assert PLACES.of("login") == NodePlace()
    assert PLACES.rails("login") == ()
    assert ConfiguredPlaces().of("node001") == NodePlace()
