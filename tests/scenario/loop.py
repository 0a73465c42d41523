"""A training job without torch: ranks that share a batch, wait for each other in a barrier and resume where they were.

    python loop.py [STEPS]

While there is a file `drag` beside the checkpoints the last rank is slow, on whichever node it runs; where there is a file `leave`, rank 1 takes it away
and ends with exit code 0; where there is a file `ecc-NODE`, a worker of that node takes it away and raises what torch raises for a broken memory; with `reset-NODE` what
gloo raises for a connection that broke. A file `deadlock-RANK` or `deadlock-NODE` catches that rank, or the last worker of that node, in a deadlock after some steps of each
start. The barrier is real: rank 0 sits in the middle of sockets, as a broken peer breaks everybody's step.
"""

import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import eagle_eye

BATCH_S = 0.08
"""What the global batch takes on one worker; the ranks share it."""
DRAG_S = 0.2
"""What a slow rank takes beside that."""
TOKENS = 4096.0
CATCH_AFTER = 20
"""Steps after a start."""
WORD = struct.Struct("!q")


class Ranks:
    """The connections between rank 0 and all others."""

    def __init__(self, rank: int, world: int, meeting: Path) -> None:
        self.rank = rank
        self.peers = _accept(world - 1, meeting) if rank == 0 else [_connect(meeting)]

    def agree(self, word: int) -> int:
        """Wait for everybody; rank 0's word is everybody's answer."""
        if self.rank:
            self.peers[0].sendall(WORD.pack(word))
            return _hear(self.peers[0])
        for peer in self.peers:
            _hear(peer)
        for peer in self.peers:
            peer.sendall(WORD.pack(word))
        return word


def _accept(count: int, meeting: Path) -> list[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        unfinished = meeting.with_suffix(".new")
        unfinished.write_text(str(server.getsockname()[1]))
        unfinished.replace(meeting)
        return [server.accept()[0] for _ in range(count)]


def _connect(meeting: Path) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", int(meeting.read_text())))
        except OSError:
            time.sleep(0.01)


def _hear(peer: socket.socket) -> int:
    data = peer.recv(WORD.size, socket.MSG_WAITALL)
    if len(data) < WORD.size:
        raise RuntimeError("Connection closed by peer")
    word: int = WORD.unpack(data)[0]
    return word


def _deadlock(home: Path, rank: int, world: int) -> None:
    last_of_node = os.environ["LOCAL_RANK"] == str(int(os.environ["LOCAL_WORLD_SIZE"]) - 1)
    caught = (home / f"deadlock-{rank}").exists() or (last_of_node and (home / f"deadlock-{os.environ['EAGLE_EYE_NODE']}").exists())
    if caught and world > 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def main() -> None:
    """Train until STEPS, or for ever."""
    last = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    home = Path(os.environ["EAGLE_EYE_CHECKPOINT_DIR"])
    done = home / "done"
    ranks = Ranks(rank, world, home / f"meeting-{os.environ['EAGLE_EYE_EPOCH']}")
    start = ranks.agree(int(done.read_text()) if done.exists() else 0)
    monitor = eagle_eye.monitor()
    for step in monitor.steps(range(start, last), start):
        broken = home / f"ecc-{os.environ['EAGLE_EYE_NODE']}"
        if os.environ["LOCAL_RANK"] == "0" and broken.exists():
            broken.unlink()
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        reset = home / f"reset-{os.environ['EAGLE_EYE_NODE']}"
        if os.environ["LOCAL_RANK"] == "0" and reset.exists():
            reset.unlink()
            raise RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:51122")
        if step >= start + CATCH_AFTER:
            _deadlock(home, rank, world)
        with monitor.phase("forward"):
            time.sleep(BATCH_S / world + (DRAG_S if rank == world - 1 and (home / "drag").exists() else 0.0))
        with monitor.phase("communication"):
            ranks.agree(step)
        if rank == 0:
            done.with_suffix(".new").write_text(str(step + 1))
            done.with_suffix(".new").replace(done)
        if rank == 1 and (home / "leave").exists():
            (home / "leave").unlink()
            sys.exit(0)
        monitor.log(loss=2.0 + 0.01 * (step % 7), tokens=TOKENS / world)


if __name__ == "__main__":
    main()
