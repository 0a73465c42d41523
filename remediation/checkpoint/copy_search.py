"""Brings back what other nodes have kept for a worker here, into a segment that it opens: once for each worker that asks, and once for all of them where all ranks hold the same."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from eagle_eye.access.credentials import Credentials
from eagle_eye.errors import EagleEyeError
from eagle_eye.training import messages
from eagle_eye.training.checkpoint.memory_segment import (
    SLOTS,
    MemorySegment,
    fetched_beside,
    slot_bytes,
)
from eagle_eye.training.checkpoint.roll_backs import RollBacks, abandoned

from .copy_client import CopyChanged, CopyClient, CopyGone, Description
from .copy_files import CopyName
from .copy_wire import CopyConnection, Source

log = logging.getLogger(__name__)

AT_ONCE = 16
"""So many launchers are asked at the same time."""
ANY_RANK = -1
Find = Callable[[str], Awaitable[Source | None]]
"""Node → where it serves its copies; None: it does not answer."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for."""

    rank: int
    world: int
    at_most: int = -1
    """The highest step to take; below 0: any."""
    path: Path
    """Of its segment."""
    worker: str
    replicated: bool = False
    """All ranks hold the same: where nobody has a copy of this rank, one of any will do."""
    newer_from: int = 0
    """Above 0: the newest that workers of any node hold themselves is wanted, whichever rank's, if it is of this step or a newer one."""

    rolled_back: RollBacks = ()
    """Those of the run, as the launcher knows them."""

    def takes(self, name: CopyName) -> bool:
        """Whether it may be used. Not what lies in the worker's own memory."""
        is_between = name.step >= self.newer_from and (self.at_most < 0 or name.step <= self.at_most)
        return is_between and name.file != self.path.name and not abandoned(self.rolled_back, name.epoch, name.step)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `state`: busy, done or none."""

    state: str
    path: str = ""
    source: str = ""
    """Node that had it."""
    why: str = ""
    """What could not be used, or why there is nothing."""


BUSY = Found(state="busy")


class CopySearch:
    """One search for each process of a worker."""

    def __init__(self, find: Find, credentials: Credentials | None) -> None:
        self._find, self._credentials = find, credentials
        self._searches: dict[tuple[int, int], asyncio.Task[Found]] = {}
        """By process and epoch: one that is taken in anew may have to load again."""
        self._first: tuple[tuple[int, int], Found] | None = None
        """What was found for all workers: (epoch, highest step), and that."""
        self._turn = asyncio.Lock()

    def ask(self, pid: int, wanted: Wanted, nodes: Sequence[str], epoch: int) -> Found:
        """Begin the search of that process, or tell how it stands. `nodes`: this one, then the others, in the order in which they are asked."""
        task = self._searches.get((pid, epoch))
        if task is None:
            self._searches = {known: search for known, search in self._searches.items() if not search.done()}
            alike = wanted.replicated and not wanted.newer_from
            task = self._searches[pid, epoch] = asyncio.create_task(self._shared(wanted, nodes, epoch) if alike else self._search(wanted, nodes))
        return task.result() if task.done() else BUSY

    async def close(self) -> None:
        """Wait for nothing any more."""
        for task in self._searches.values():
            task.cancel()
        await asyncio.gather(*self._searches.values(), return_exceptions=True)

    async def _shared(self, wanted: Wanted, nodes: Sequence[str], epoch: int) -> Found:
        """What all ranks hold alike comes to this node once in an epoch; who asks later gets a name of its own for the same memory, as long as that is there."""
        async with self._turn:
            if self._first is not None and self._first[0] == (epoch, wanted.at_most):
                found = self._first[1]
                if found.state != "done":
                    return found
                with contextlib.suppress(OSError):
                    return msgspec.structs.replace(found, path=_linked(found.path, fetched_beside(wanted.path)))
            found = await self._search(wanted, nodes)
            if found.state != "done":
                found = await self._search(msgspec.structs.replace(wanted, rank=ANY_RANK), nodes)
            self._first = (epoch, wanted.at_most), found
            return found

    async def _search(self, wanted: Wanted, nodes: Sequence[str]) -> Found:
        """The likeliest two nodes first (this one and its neighbour), then all others; where the newest is wanted, all of them."""
        reasons: list[str] = []
        try:
            for group in (nodes,) if wanted.newer_from else (nodes[:2], nodes[2:]):
                async for named in self._sources(group, in_turn=not wanted.newer_from):
                    node = await asyncio.to_thread(_bring, wanted, named, self._credentials, reasons)
                    if node:
                        return Found(state="done", path=str(fetched_beside(wanted.path)), source=node, why="; ".join(reasons))
        except Exception as error:  # boundary: the worker waits for an answer, and loads from storage
            log.exception("the search for copies of rank %d failed", wanted.rank)
            reasons.append(f"{type(error).__name__}: {error}")
        return Found(state="none", why="; ".join(reasons) or messages.NO_COPY)

    async def _sources(self, nodes: Sequence[str], *, in_turn: bool) -> AsyncIterator[dict[str, Source]]:
        """Of the nodes that answer, AT_ONCE after AT_ONCE; not `in_turn`: together, when the last has answered."""
        found: dict[str, Source] = {}
        for at in range(0, len(nodes), AT_ONCE):
            group = nodes[at : at + AT_ONCE]
            sources = await asyncio.gather(*(self._find(node) for node in group))
            found |= {node: source for node, source in zip(group, sources, strict=True) if source is not None}
            if in_turn:
                yield found
                found = {}
        if found:
            yield found


def _linked(found: str, path: Path) -> str:
    """A further name of that file. Raises OSError."""
    if Path(found) == path:
        path.stat()
    else:
        path.unlink(missing_ok=True)
        os.link(found, path)
    return str(path)


def _bring(wanted: Wanted, sources: dict[str, Source], credentials: Credentials | None, reasons: list[str]) -> str:
    """The two newest steps that one of these nodes has; the node, '' if none has any that is whole."""
    if wanted.newer_from:
        sources = _newest_first(wanted, sources, credentials, reasons)
    for node, source in sources.items():
        try:
            if _bring_from(wanted, source, credentials, reasons):
                return node
        except (OSError, EagleEyeError, CopyGone, CopyChanged, msgspec.ValidationError) as error:
            reasons.append(f"{node}: {error}")
            log.warning("copies of rank %d cannot be had from %s: %s", wanted.rank, node, error)
    return ""


def _newest_first(wanted: Wanted, sources: dict[str, Source], credentials: Credentials | None, reasons: list[str]) -> dict[str, Source]:
    """Of these nodes those that have something to give, the one with the newest step first."""
    newest: dict[str, int] = {}
    for node, source in sources.items():
        try:
            with CopyClient(source, credentials).connected() as connection:
                steps = [name.step for name in _listed(wanted, connection)]
        except (OSError, EagleEyeError, msgspec.ValidationError) as error:
            reasons.append(f"{node}: {error}")
            log.warning("%s does not say which copies it has: %s", node, error)
        else:
            newest |= {node: max(steps)} if steps else {}
    return {node: sources[node] for node in sorted(newest, key=lambda each: -newest[each])}


def _listed(wanted: Wanted, connection: CopyConnection) -> list[CopyName]:
    """What that node has and may be used, the newest first."""
    rank = ANY_RANK if wanted.newer_from else wanted.rank
    answer = connection.ask({"kind": "list", "rank": rank, "world": wanted.world})
    names = [name for name in msgspec.convert(answer.get("copies"), list[CopyName]) if wanted.takes(name)]
    return sorted(names, key=lambda each: each.step, reverse=True)


def _bring_from(wanted: Wanted, source: Source, credentials: Credentials | None, reasons: list[str]) -> bool:
    client = CopyClient(source, credentials)
    with client.connected() as connection:
        described: dict[int, tuple[CopyName, Description]] = {}
        for name in _listed(wanted, connection):
            if name.step not in described and len(described) < SLOTS:
                described[name.step] = name, client.describe(connection, name)
    if not described:
        return False
    size = max(slot_bytes(len(description.table), description.payload) for _, description in described.values())
    segment = MemorySegment.create(fetched_beside(wanted.path), size, wanted.worker)
    whole = 0
    try:
        for slot, (name, description) in enumerate(described.values()):
            try:
                client.fetch(name, description, segment, slot, SLOTS - slot)
                whole += 1
            except (CopyGone, CopyChanged) as error:
                reasons.append(f"the copy of step {name.step} in {name.file} (slot {name.slot}): {error}")
    finally:
        segment.close()
    return whole > 0
