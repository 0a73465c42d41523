"""`GlooGroup`: a process group over gloo, aborted by shutting down its sockets, because gloo's own abort() does nothing.

Which sockets are the group's is known from their addresses only. Each peer writes the address it listens on to the
store, as the bytes of a sockaddr; a TCP socket one of whose ends is such an address is the group's, accepted by us
or connected to a peer. So no socket of another thread is mistaken for one, however many are opened meanwhile.
Listening sockets are not touched: gloo ends the process when its listener fails.
"""

import contextlib
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, ProcessGroupGloo

from eagle_eye.training.elastic.epoch_protocol import EpochAssignment, EpochSession
from eagle_eye.training.elastic.rendezvous.session_store import SessionStore

from .construction import Construction
from .torch_group import LONGEST, TorchGroup

TIMEOUT_S = 20.0
"""Seconds to build a group. A peer that dies meanwhile ends the wait earlier: its death starts a newer epoch."""


class GlooGroup(TorchGroup):
    """The workers of an epoch over gloo."""

    def __init__(self, backend: Any, sockets: list[socket.socket], assignment: EpochAssignment) -> None:
        super().__init__(backend, epoch=assignment.epoch, rank=assignment.rank, world=assignment.world, device="cpu")
        self._sockets = sockets

    def _complete(self, issued: Any) -> None:
        issued.wait(LONGEST)

    def _end(self) -> None:
        shut_down(self._sockets)


def form(session: EpochSession, assignment: EpochAssignment, timeout_s: float = TIMEOUT_S) -> GlooGroup:
    """Form the group with the other workers of the epoch. Raises Fenced, Broken."""
    store = SessionStore(session, assignment.epoch, timeout_s, siblings=assignment.world)

    def build() -> GlooGroup:
        backend = ProcessGroupGloo(
            PrefixStore("gloo", store), assignment.rank, assignment.world, timedelta(seconds=timeout_s)
        )
        backend._set_default_timeout(LONGEST)  # of its operations: those take as long as the slowest peer
        return GlooGroup(backend, sockets_of(store.seen), assignment)

    made: GlooGroup = Construction(
        session, assignment.epoch, build, lambda: shut_down(sockets_of(store.seen), socket.SHUT_RDWR)
    ).result(timeout_s)
    return made


def sockets_of(written: list[bytes]) -> list[socket.socket]:
    """Duplicates of this process's TCP connections with an end whose address occurs in `written`.

    Duplicates, because a file descriptor may belong to another file by the time it is used.
    """
    known = b"\0".join(written)
    found = (_duplicate(number) for number in _one_number_each())
    return [each for each in found if each is not None and _keep(each, known)]


def shut_down(sockets: list[socket.socket], how: int = socket.SHUT_RD) -> None:
    """Shut down the connections: operations that are blocked on either end fail within milliseconds.

    For reading only: gloo then closes them itself, whereas a write that fails in the thread that sends is what it
    loses (TorchGroup.finish).
    """
    while sockets:
        with contextlib.suppress(OSError, IndexError), sockets.pop() as each:
            each.shutdown(how)


def _one_number_each() -> list[int]:
    """One file descriptor of each socket that is open."""
    sockets: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            name = entry.readlink().name
            if name.startswith("socket:"):
                sockets[name] = int(entry.name)
    return list(sockets.values())


def _duplicate(number: int) -> socket.socket | None:
    try:
        return socket.socket(fileno=os.dup(number))
    except OSError:
        return None  # closed meanwhile


def _keep(candidate: socket.socket, known: bytes) -> bool:
    """Whether it is the group's; it is closed here if not."""
    with contextlib.suppress(OSError):
        if candidate.family in (socket.AF_INET, socket.AF_INET6) and not _listens(candidate):
            ends = (candidate.getsockname(), candidate.getpeername())
            if any(sockaddr(candidate.family, end) in known for end in ends):
                return True
    candidate.close()
    return False


def _listens(candidate: socket.socket) -> bool:
    return bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def sockaddr(family: int, address: tuple[Any, ...]) -> bytes:
    """An address as the kernel lays it out: family, port, and the address itself (ip(7), ipv6(7))."""
    host, port = str(address[0]), int(address[1])
    head = family.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big")
    if family == socket.AF_INET:
        return head + socket.inet_pton(socket.AF_INET, host)
    flow = int(address[2]).to_bytes(4, "big")
    return head + flow + socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
