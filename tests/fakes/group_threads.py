"""`ThreadGroup`: a process group whose workers are threads of one process; what they send goes through a dictionary."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eagle_eye.errors import Broken


class Killed(BaseException):
    """The worker that raises it is dead; nothing in its thread may catch it."""


@dataclass
class Mailbox:
    """What workers have sent to each other and not received yet."""

    world: int
    arrived: threading.Condition = field(default_factory=threading.Condition)
    sent: dict[tuple[Any, ...], list[torch.Tensor]] = field(default_factory=dict)
    broken: bool = False

    def put(self, key: tuple[Any, ...], tensor: torch.Tensor) -> None:
        with self.arrived:
            self.sent.setdefault(key, []).append(tensor.clone())
            self.arrived.notify_all()

    def take(self, key: tuple[Any, ...]) -> torch.Tensor:
        with self.arrived:
            self.arrived.wait_for(lambda: self.broken or self.sent.get(key))
            if self.broken:
                raise Broken("a peer is gone")
            return self.sent[key].pop(0)

    def abort(self) -> None:
        with self.arrived:
            self.broken = True
            self.arrived.notify_all()


@dataclass
class FakeWork:
    act: Callable[[], object]

    def wait(self) -> None:
        self.act()


@dataclass
class ThreadGroup:
    """A ProcessGroup. `dies_at`: the number of the operation in which it is killed. `log`: its operations so far."""

    mailbox: Mailbox
    rank: int
    epoch: int = 1
    dies_at: int = -1
    log: list[str] = field(default_factory=list)
    device = "cpu"

    @property
    def world(self) -> int:
        return self.mailbox.world

    def all_reduce(self, tensor: torch.Tensor, *, wait: bool = True) -> FakeWork:
        number = self._begin("all_reduce")
        for peer in range(self.world):
            self.mailbox.put(("all_reduce", self._count("all_reduce"), self.rank, peer), tensor)

        def finish() -> None:
            parts = [self.mailbox.take(("all_reduce", number, peer, self.rank)) for peer in range(self.world)]
            tensor.copy_(sum(parts[1:], parts[0]))

        if wait:
            finish()
        return FakeWork(finish)

    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor) -> None:
        number = self._begin("all_gather")
        for peer in range(self.world):
            self.mailbox.put(("all_gather", number, self.rank, peer), tensor)
        for peer, output in enumerate(outputs):
            output.copy_(self.mailbox.take(("all_gather", number, peer, self.rank)))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        raise NotImplementedError

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> FakeWork:
        self._begin("send")
        self.mailbox.put(("send", tag, self.rank, to), tensor)
        return FakeWork(lambda: None)

    def receive(self, tensor: torch.Tensor, frm: int, tag: int) -> FakeWork:
        self._begin("receive")
        return FakeWork(lambda: tensor.copy_(self.mailbox.take(("send", tag, frm, self.rank))))

    def abort(self) -> None:
        self.mailbox.abort()

    def close(self) -> None:
        self.abort()

    def _begin(self, kind: str) -> int:
        """The operation's number among those of its kind."""
        if len(self.log) == self.dies_at:
            self.mailbox.abort()
            raise Killed
        if self.mailbox.broken:
            raise Broken("a peer is gone")
        self.log.append(kind)
        return self._count(kind)

    def _count(self, kind: str) -> int:
        return self.log.count(kind)


def group_of(world: int, epoch: int = 1) -> list[ThreadGroup]:
    """By rank."""
    mailbox = Mailbox(world)
    return [ThreadGroup(mailbox, rank, epoch) for rank in range(world)]


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each call in a thread of its own: what it returned, or what it raised."""
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "workers wait for each other"
    return results
