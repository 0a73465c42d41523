"""Workers of one group as threads of a process that send each other messages, which are counted and can be changed on their way."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from eagle_eye.errors import Broken

PATIENCE_S = 90.0


class Mailbox:
    """The messages that were sent and not received yet."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)
        self.aborted = False
        self.carried: dict[int, int] = defaultdict(int)
        """Bytes by tag."""
        self.spoil: Callable[[int, int, int, Tensor], None] = lambda frm, to, tag, message: None

    def send(self, frm: int, to: int, tag: int, message: Tensor) -> None:
        self.spoil(frm, to, tag, message)
        with self.changed:
            if self.aborted:
                raise Broken("aborted")
            self.carried[tag] += message.numel() * message.element_size()
            self.messages[frm, to, tag].append(message)
            self.changed.notify_all()

    def fetch(self, frm: int, to: int, tag: int) -> Tensor:
        with self.changed:
            box = self.messages[frm, to, tag]
            assert self.changed.wait_for(lambda: box or self.aborted, PATIENCE_S), f"{to} waits for tag {tag} of {frm}"
            if self.aborted:
                raise Broken("aborted")
            return box.popleft()

    def abort(self) -> None:
        with self.changed:
            self.aborted = True
            self.changed.notify_all()


class FakeWork:
    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class P2pGroup:
    """A ProcessGroup, as far as state transfers need one."""

    def __init__(self, mailbox: Mailbox, rank: int, world: int, epoch: int = 1) -> None:
        self.mailbox, self.rank, self.world, self.epoch = mailbox, rank, world, epoch

    def send(self, tensor: Tensor, to: int, tag: int) -> FakeWork:
        self.mailbox.send(self.rank, to, tag, tensor.clone())
        return FakeWork(lambda: None)

    def receive(self, tensor: Tensor, frm: int, tag: int) -> FakeWork:
        return FakeWork(lambda: self._receive(tensor, frm, tag))

    def _receive(self, tensor: Tensor, frm: int, tag: int) -> None:
        message = self.mailbox.fetch(frm, self.rank, tag)
        assert (message.dtype, message.shape) == (tensor.dtype, tensor.shape)
        tensor.copy_(message)


def together(acts: list[Callable[[], Any]], mailbox: Mailbox) -> list[Any]:
    """Run them at the same time, one thread each; the result or the exception of each. One that fails aborts the group."""

    def done(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except BaseException:
            mailbox.abort()
            raise

    with ThreadPoolExecutor(len(acts)) as pool:
        futures: list[Future[Any]] = [pool.submit(done, act) for act in acts]
    return [future.exception() or future.result() for future in futures]
