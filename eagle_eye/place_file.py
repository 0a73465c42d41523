"""`place.json` in the run directory: where the node is, as its agent has found, for the launchers on it.

An agent speaks to the servers by the stream; a launcher reads no stream, and has to know the place when it joins its job.
"""

import os
from pathlib import Path

import msgspec

from .errors import UNREADABLE
from .regular_file import read_owned
from .training import atomic_file
from .types import NodePlace

NAME = "place.json"
LARGEST = 1 << 14
"""Bytes: four names of 400 characters, of which JSON makes six bytes each at the most."""


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    place: NodePlace


def write_place(run_dir: Path, node: str, place: NodePlace) -> None:
    """In the place of what the file held; readable for launchers of other users, whatever the agent's umask. Raises OSError."""
    atomic_file.replace(run_dir / NAME, msgspec.json.encode(_Content(node=node, place=place)), durable=False, mode=0o644)


def read_place(run_dir: Path, node: str) -> NodePlace:
    """What the agent of this node has written; an unknown place where there is no such file, or one that is not to be believed.

    Believed are root, this user, and whose directory it is: another user of a shared one may not say where a node is.
    """
    try:
        content, owner = read_owned(run_dir / NAME, LARGEST, follow=False)
        if owner not in {0, os.geteuid(), run_dir.stat().st_uid}:
            return NodePlace()
        told = msgspec.json.decode(content, type=_Content)
    except (OSError, *UNREADABLE):
        return NodePlace()
    return told.place if told.node == node else NodePlace()
