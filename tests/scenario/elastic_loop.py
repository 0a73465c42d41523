"""An elastic worker without torch: its steps are waits, its collectives are sockets, its state is the number of its step.

    python elastic_loop.py UNTIL FOLDER

What it commits it appends to FOLDER/<worker>.jsonl. A file FOLDER/hang-<worker> makes its main thread stand still in a
micro-batch, FOLDER/wedge-<worker> within a collective; FOLDER/wait-<worker> has it wait in one call of C for 3 s, in which no other thread of
it runs. Whoever computes micro-batch 0 of the step in FOLDER/poison raises; of the step in FOLDER/leave-<code> it ends with that exit code,
without a word; FOLDER/leave-once-<code> strikes one worker alone.
"""

import ctypes
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import eagle_eye
from eagle_eye.errors import Broken, Ended, Fenced, FencedOut, Halted, LauncherLost
from eagle_eye.training.elastic.launcher_session import EpochAssignment, HeldState, LauncherSession

MICRO_BATCHES = 8
COMPUTE_S = 0.005
LAYERS = [1000, 2000]


class Group:
    """Sockets between rank 0 and all others, met through the launcher's store."""

    def __init__(self, session: LauncherSession, assignment: EpochAssignment) -> None:
        self.epoch, self.rank, self.world = assignment.epoch, assignment.rank, assignment.world
        self.peers: list[socket.socket] = []
        if self.world > 1:
            (self._accept if self.rank == 0 else self._connect)(session)

    def _accept(self, session: LauncherSession) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.05)
            self._ask(session, "set", [str(server.getsockname()[1])])
            while len(self.peers) < self.world - 1:
                session.check(self.epoch)
                with suppress(TimeoutError):
                    self.peers.append(server.accept()[0])
        for peer in self.peers:
            peer.settimeout(None)

    def _connect(self, session: LauncherSession) -> None:
        port = int(self._ask(session, "get", []))
        try:
            self.peers = [socket.create_connection(("127.0.0.1", port), 5.0)]
        except OSError as error:
            raise Broken(str(error)) from error
        self.peers[0].settimeout(None)

    def _ask(self, session: LauncherSession, op: str, values: list[str]) -> str:
        import base64

        encoded = [base64.b64encode(value.encode()).decode() for value in values]
        answer = session.ask_store(self.epoch, 10.0, op=op, keys=[f"{self.epoch}/port"], values=encoded)
        if not answer.get("ok"):
            raise Broken(str(answer.get("error")))
        return base64.b64decode(answer["values"][0]).decode() if answer.get("values") else ""

    def greatest(self, number: int) -> int:
        """The greatest of everybody's numbers. Raises Broken."""
        try:
            if self.rank:
                self.peers[0].sendall(number.to_bytes(8, "big"))
                return int.from_bytes(_exactly(self.peers[0]), "big")
            number = max([number, *(int.from_bytes(_exactly(peer), "big") for peer in self.peers)])
            for peer in self.peers:
                peer.sendall(number.to_bytes(8, "big"))
        except OSError as error:
            raise Broken(str(error)) from error
        return number

    def abort(self) -> None:
        for peer in self.peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.abort()


def _exactly(peer: socket.socket) -> bytes:
    data = peer.recv(8, socket.MSG_WAITALL)
    if len(data) != 8:
        raise ConnectionError("a peer is gone")
    return data


class Worker:
    """The loop of a step, from epoch to epoch."""

    def __init__(self, until: int, folder: Path) -> None:
        self.name = os.environ["EAGLE_EYE_WORKER"]
        self.until, self.folder = until, folder
        self.log = (folder / f"{self.name.replace('/', '_')}.jsonl").open("a", buffering=1)
        self.monitor = eagle_eye.monitor()
        self.session = LauncherSession.connect(os.environ["EAGLE_EYE_ELASTIC_SOCKET"], self.name, os.getpid())
        self.session.held_state = lambda: HeldState(self.step, tuple(sorted(self.done)), (), self.phase, self.fresh)
        self.step, self.done, self.phase, self.fresh = 0, set(), "starting", True
        self.epoch = -1

    def run(self) -> int:
        self.enter()
        while True:
            try:
                if self.train(self.session.next_assignment(self.epoch)):
                    self.session.send("leave", epoch=self.epoch, step=self.step, reason="done")
                    return 0
            except Fenced:
                continue
            except Broken as error:
                if self.session.fenced_epoch <= self.epoch:
                    self.session.send("broken", epoch=self.epoch, error=str(error))
            except FencedOut:
                self.session.use_group(None)
                self.write(fenced=self.step)
                self.enter()
            except Halted as halted:
                self.write(halted=halted.reason)
                return halted.code
            except (Ended, LauncherLost):
                return 0

    def enter(self) -> None:
        self.step, self.done, self.phase, self.fresh = 0, set(), "starting", True
        epoch = int(os.environ["EAGLE_EYE_EPOCH"])
        self.session.join(epoch=epoch, step=0, micro_batches=MICRO_BATCHES, layers=LAYERS, segments=1, fresh=True)

    def train(self, assignment: EpochAssignment) -> bool:
        """Steps of one epoch; True once all are done."""
        self.monitor.mark("communication")
        began = time.monotonic()
        self.write(assignment=assignment.epoch)
        self.epoch = assignment.epoch
        self.monitor.set_epoch(assignment.epoch)
        group = Group(self.session, assignment)
        self.session.use_group(group)
        with self.session.lock:
            if self.step != assignment.step or self.fresh:
                self.step, self.done, self.fresh = assignment.step, set(), False
        self.session.send("joined", epoch=self.epoch, timings={"group_s": time.monotonic() - began, "notice_s": 0.0, "state_s": 0.0})
        mine, again = assignment.current[assignment.rank], sorted(set(assignment.current[assignment.rank]) - self.done)
        first = True
        while self.step < self.until:
            self.compute(mine)
            word = self.commit(group)
            if first:
                self.session.send("resumed", epoch=self.epoch, step=self.step, recompute_s=0.0, recomputed=again)
            first, mine = False, assignment.shares[assignment.rank]
            self.write(step=self.step - 1, epoch=self.epoch, world=assignment.world, rank=assignment.rank)
            if word > self.epoch:
                self.phase = "idle"
                self.session.answer_soft_fence(self.session.held_state())
                raise Fenced(word)
        return True

    def compute(self, mine: tuple[int, ...]) -> None:
        self.monitor.begin(self.step)
        self.phase = "computing"
        for number in [number for number in mine if number not in self.done]:
            self.monitor.mark("forward")
            self.stand_still("hang")
            if self.ordered("wait"):
                ctypes.PyDLL(None).usleep(3_000_000)
            self.taste(number)
            threading.Event().wait(COMPUTE_S)
            self.session.check(self.epoch)
            with self.session.lock:
                self.done.add(number)

    def taste(self, number: int) -> None:
        poison = self.folder / "poison"
        if number == 0 and poison.exists() and int(poison.read_text()) == self.step:
            raise ValueError("negative length")
        for leave in self.folder.glob("leave-*") if number == 0 else ():
            if int(leave.read_text()) == self.step:
                if "once" in leave.name:
                    leave.unlink()
                os._exit(int(leave.name.rpartition("-")[2]))

    def stand_still(self, what: str) -> None:
        if self.ordered(what):
            threading.Event().wait()

    def ordered(self, what: str) -> bool:
        """For this process alone, not for the one that takes its place."""
        order = self.folder / f"{what}-{self.name.replace('/', '_')}"
        there = order.exists()
        order.unlink(missing_ok=True)
        return there

    def commit(self, group: Group) -> int:
        self.monitor.mark("communication")
        self.phase = "reducing"
        self.stand_still("wedge")
        group.greatest(0)
        if not self.session.may_commit(self.epoch):
            raise Fenced(self.session.fenced_epoch)
        self.phase = "committing"
        word = group.greatest(max(self.session.soft_epoch, 0))
        with self.session.lock:
            self.step, self.done, self.phase = self.step + 1, set(), "idle"
        self.monitor.end()
        return word

    def write(self, **words: object) -> None:
        self.log.write(json.dumps(words | {"pid": os.getpid(), "time": time.monotonic()}) + "\n")


if __name__ == "__main__":
    sys.exit(Worker(int(sys.argv[1]), Path(sys.argv[2])).run())
