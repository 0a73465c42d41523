"""Workers of one group as threads of a process that send each other letters; letters are counted and can be spoiled."""

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from eagle_eye.errors import Broken

PATIENCE_S = 20.0


class Mail:
    """What is under way between them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.letters: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)
        self.aborted = False
        self.carried: dict[int, int] = defaultdict(int)
        """Bytes by tag."""
        self.spoil: Callable[[int, int, int, Tensor], None] = lambda frm, to, tag, letter: None

    def send(self, frm: int, to: int, tag: int, letter: Tensor) -> None:
        self.spoil(frm, to, tag, letter)
        with self.changed:
            if self.aborted:
                raise Broken("aborted")
            self.carried[tag] += letter.numel() * letter.element_size()
            self.letters[frm, to, tag].append(letter)
            self.changed.notify_all()

    def fetch(self, frm: int, to: int, tag: int) -> Tensor:
        with self.changed:
            box = self.letters[frm, to, tag]
            assert self.changed.wait_for(lambda: box or self.aborted, PATIENCE_S), f"{to} waits for tag {tag} of {frm}"
            if self.aborted:
                raise Broken("aborted")
            return box.popleft()

    def end(self) -> None:
        with self.changed:
            self.aborted = True
            self.changed.notify_all()


class Act:
    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait


class Correspondent:
    """A Group, as far as state transfers need one."""

    def __init__(self, mail: Mail, rank: int, world: int, epoch: int = 1) -> None:
        self.mail, self.rank, self.world, self.epoch = mail, rank, world, epoch

    def send(self, tensor: Tensor, to: int, tag: int) -> Act:
        self.mail.send(self.rank, to, tag, tensor.clone())
        return Act(lambda: None)

    def receive(self, tensor: Tensor, frm: int, tag: int) -> Act:
        return Act(lambda: self._receive(tensor, frm, tag))

    def _receive(self, tensor: Tensor, frm: int, tag: int) -> None:
        letter = self.mail.fetch(frm, self.rank, tag)
        assert (letter.dtype, letter.shape) == (tensor.dtype, tensor.shape)
        tensor.copy_(letter)


def together(acts: list[Callable[[], Any]], mail: Mail) -> list[Any]:
    """Do them at the same time, one thread each; the result or the exception of each. Whoever fails cuts the group."""

    def done(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except BaseException:
            mail.end()
            raise

    with ThreadPoolExecutor(len(acts)) as pool:
        futures: list[Future[Any]] = [pool.submit(done, act) for act in acts]
    return [future.exception() or future.result() for future in futures]
