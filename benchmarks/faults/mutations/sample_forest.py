"""The data of a valid baseline: two small trees, as the learner of the isolation forest would write them."""

import msgspec

from detectors.features.forest_model import VERSION, Forest, Forests
from detectors.features.node_metrics import GPU_PREFIX

from .sample_job import OF_GPUS, OF_NODES

NODES = 7


def forest() -> bytes:
    """msgpack of a forest of nodes over the metrics of the sample job."""
    names = (*sorted(OF_NODES)[:4], *(GPU_PREFIX + name for name in sorted(OF_GPUS)[:2]))
    left, right = [1, 3, 5, 3, 4, 5, 6], [2, 4, 6, 3, 4, 5, 6]
    trees = Forest(
        names=names, median=[1.0] * len(names), spread=[0.5] * len(names), cutoff=0.5, raised=0.5, depth=2, expected=3.0, feature=[[0] * NODES] * 2,
        threshold=[[1.0] * NODES] * 2, left=[left] * 2, right=[right] * 2, path=[[2.0] * NODES] * 2,
    )  # fmt: skip
    return msgspec.msgpack.encode(Forests(VERSION, {"node": trees}))
