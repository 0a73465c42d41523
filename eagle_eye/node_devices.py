"""The GPUs and ports of a node, as its agent tells them in a `node.devices` event: JSON in the attributes `gpus` and `ports`."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from eagle_eye.errors import UNREADABLE

from .types import Event, Kind

NODE_DEVICES = "node.devices"
_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Index = Annotated[int, msgspec.Meta(ge=-1, le=1 << 20)]
MOST = 1024
"""Devices of a node."""
LONGEST = 1 << 20
"""Characters."""


class NodeGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    uuid: _Text
    index: _Index
    """NVML's."""
    pci: _Text
    """Address as the kernel writes it."""
    mig_instances: _Index = 0
    """Into how many GPU instances it is divided."""
    numa: _Index = -1
    """NUMA node; -1: not known."""
    port: _Text = ""
    """Name of the port next to it; '' is none."""


class NodePort(msgspec.Struct, frozen=True, kw_only=True):
    """One port of the fabric."""

    name: _Text
    """mlx5_0:1, or eth0"""
    pci: _Text
    numa: _Index = -1
    rail: _Index = -1
    """-1: it has none."""
    switch: _Text = ""
    """At which it hangs, and the port there, by LLDP; '' is unknown."""
    switch_port: _Text = ""


_GPUS = msgspec.json.Decoder(Annotated[tuple[NodeGpu, ...], msgspec.Meta(max_length=MOST)])


def devices_attributes(gpus: Sequence[NodeGpu], ports: Sequence[NodePort]) -> dict[str, str]:
    """Those of the event; the same devices always give the same text. {} without any device."""
    return {name: msgspec.json.encode(list(devices)).decode() for name, devices in (("gpus", gpus), ("ports", ports)) if devices}


def gpus_told(event: Event) -> tuple[NodeGpu, ...] | None:
    """The GPUs in a `node.devices` event; None where it is not the node's own agent that speaks, or where it tells no such thing."""
    text = event.attributes.get("gpus", "[]")
    if event.entity.kind is not Kind.NODE or event.entity.name != event.node or len(text) > LONGEST:
        return None
    try:
        gpus: tuple[NodeGpu, ...] = _GPUS.decode(text)
    except UNREADABLE:
        return None
    return gpus
