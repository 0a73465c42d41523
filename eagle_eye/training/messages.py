"""The messages between trainer, zygote and launcher: one JSON object a line, `{"v": 1, "kind": ...}`.

Four conversations, all on one machine, between processes of one user:

worker → launcher, unix socket EAGLE_EYE_SOCKET (one message a connection or several; `token` and `fetch_memory_checkpoint` are answered)
    hello(worker, pid, epoch)                       the probe runs and serves its own socket
    exception(worker, pid, epoch, raised_s, type, message, traceback, step, thread, fatal)
                                                    raised and not caught; sent before the process dies. raised_s: when, by
                                                    CLOCK_MONOTONIC: before or after the launcher ordered its end. Not fatal
                                                    in a thread beside the main one, whose name is given. With path, errno
                                                    and free_bytes if storage refused a file
    checkpoint(worker, epoch, step, path, finite)   a checkpoint became visible
    checkpoint_failed(worker, epoch, step, path, errno, reason, free_bytes, needed_bytes, attempt, retry_s)
                                                    storage refused a checkpoint; training goes on, and it is tried again after
                                                    retry_s. path: of the folder; free_bytes: -1 if unknown; attempt: in a row
    memory_checkpoint_failed(worker, epoch, step, path, errno, reason, free_bytes, needed_bytes, safe_step, retry_s, file)
                                                    the node's memory refused one; told once. safe_step: the newest that is
                                                    whole in memory, -1: none
    memory_checkpoint_reduced(worker, epoch, path, errno, reason, free_bytes, needed_bytes, slots, wanted)
                                                    the node has memory for so many copies of its state, not for as many as are
                                                    wanted; told once
    bad_gradient(worker, epoch, step, tensor, shape)
                                                    its gradient is NaN or infinite, before it is exchanged; tensor: as
                                                    named_parameters has it ("": not known), shape: 64x128. Once a minute
    replay_differs(worker, epoch, step)             the step was run again from the same state, and its gradient was another
                                                    one, for the second time in succession
    replay_ended(worker, epoch, step, reason)       steps are not run again any more, and why; told once
    fetch_memory_checkpoint(worker, pid, rank, world, at_most, replicated, newer_from) → {"ok": true, "state": busy | done | none, "path", "source", "why"}
                                                    what other nodes have of it; asked until it is not busy. path: of a segment
                                                    that is the worker's to remove
    memory_checkpoint_loaded(worker, epoch, step, tier, source, why)
                                                    step -1: no copy could be used. tier: memory, neighbour, storage

any process of the same uid → launcher
    token(worker) → {"ok": true, "token": ..., "socket": path of the worker's probe}

any process of the same uid → probe, unix socket EAGLE_EYE_PROBE_SOCKET
    status() → {"ok": true, "step": ..., "phase": ..., "marks": ..., "running": ..., "in_step": ..., ...}    needs no token
    drill(token, drill, arguments) → {"ok": true} and then the fault, or {"ok": false, "error": ...}

launcher ↔ zygote, inherited socket pair
    fork(slot, argv, env, cwd, log, python) → forked(slot, pid) | failed(slot, error)
    store(host)                                     → stored(host, port, pid) | failed(slot="store", error)
    kill(pid, signal, group)                        answered by the `exited` of the process
    exited(pid, status, ended_s)                    for every child, at once; status as of waitpid; ended_s: when, by CLOCK_MONOTONIC
    import(modules) → ready(pid, modules, missing, unsafe, seconds)   first of all: what to import before any fork

worker ↔ launcher, unix socket EAGLE_EYE_ELASTIC_SOCKET: one connection for the life of an elastic worker. Every
message of the worker names it (`worker`); `epoch` rises with each new group. eagle_eye/training/elastic/epoch_protocol.py
explains the fields of held_state and assignment. ← marks messages of the launcher.
    join(pid, epoch, step, micro_batches, segments, layers, fresh)
                                                    first, and again after `fenced`: asks to join the job. step: the first
                                                    one still to do; layers: bytes of state of each; fresh: the state is
                                                    the initial one, not used if any other worker holds more
    fence(epoch, soft)                              ← an epoch is being formed. Hard: the group of an older one is aborted
                                                    now, and no step is committed in it any more. Soft: after the step
    held_state(epoch, step, done, segments, phase, fresh)
                                                    the answer: to a hard fence at once, to a soft one at the next
                                                    boundary of a step; it stays true until the next epoch
    assignment(epoch, rank, world, workers, step, current, shares, finish, moves, source, resume_step)
                                                    ← the workers of the epoch, and how the step in flight goes on
    broken(epoch, error, sender, layers)            a collective failed, and no fence had arrived; or the state of these
                                                    layers arrived changed from the sender (a worker)
    joined(epoch, timings), resumed(epoch, step, recompute_s, recomputed)
                                                    the worker is in the new group, with complete state; it has
                                                    committed the first step in it
    saving(epoch, step, why, path)                  the last checkpoint, every second until it is written to `path`; why:
                                                    what keeps it from being written. The worker keeps the state
    store(id, op, keys, values, timeout_s) → stored(id, ok, values, error)
                                                    op: set, get, wait, add, check, delete, count (key_value_store.py); values
                                                    in base64; get and wait are answered when all keys are set
    fenced(reason)                                  ← no longer part of the job: it cannot commit any more
    halt(reason, code)                              ← save a checkpoint if the state is complete, exit with the code
    ended(reason)                                   ← the job ended while the worker was joining
    leave(epoch, step, reason)                      done, or a clean stop

Tokens. The launcher gives each worker a secret (EAGLE_EYE_TOKEN); the n-th token is a keyed digest of n. The
probe accepts a token once, and none that is older than one it has accepted: only the secret is shared, no message has
to synchronize the two, and a token that was intercepted is useless afterwards.
"""

import hashlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from eagle_eye.errors import NewerVersion, WireError

_log = logging.getLogger("eagle_eye.probe")
VERSION = 1
PHASES = ("other", "data", "forward", "backward", "communication", "optimizer", "evaluation", "checkpoint")
"""What a training loop does at a moment; the ring and the metric `phase` hold the index."""

DRILLS = ("hang", "hang-gil", "exception", "nan", "slow")
LONGEST = 1 << 20
"""Bytes of the longest line that is read: a longer one is not of this protocol."""
LONGEST_ASSIGNMENT = 64 << 20
"""The same, of what a launcher says to its worker: an assignment names each layer that each worker gets, 12 bytes a move, for all workers of the job."""
NO_COPY = "no other node has a copy"
"""What the answer to `fetch_memory_checkpoint` says where nothing was found, and nothing that is damaged either."""
TOKEN_WINDOW = 64
"""How many tokens may be asked for and never used before the probe refuses newer ones."""

ProbeMessage = dict[str, Any]


def encode(kind: str, **fields: Any) -> bytes:
    """One message as a line."""
    return json.dumps({"v": VERSION, "kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | str) -> ProbeMessage:
    """The message of a line. Raises WireError for what is none, NewerVersion for one of a later program."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a JSON line: {line[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise WireError(f"no message, it has no kind: {line[:80]!r}")
    version = message.get("v")
    if not isinstance(version, int) or version < 1:
        raise WireError(f"no message, it has no version: {line[:80]!r}")
    if version > VERSION:
        raise NewerVersion(f"message {message['kind']!r} has version {version}, this program reads {VERSION}")
    return message


class Lines:
    """Cuts a stream of bytes into lines; keeps the unfinished rest. `longest`: bytes of a line."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the whole lines so far. Raises WireError once a line is longer than it may be."""
        self._rest += data
        whole: list[bytes] = []
        if b"\n" in data:  # else a long line would be copied with each piece of it
            *whole, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if len(self._rest) > self._longest:
            raise WireError(f"a line of more than {self._longest} bytes: the other end does not speak this protocol")
        for line in whole:
            if line.strip():
                yield line


def token(secret: str, number: int) -> str:
    """The number-th one-time token under a worker's secret."""
    return hashlib.blake2b(str(number).encode(), key=secret.encode()[:64], digest_size=16).hexdigest()


class TokenVerifier:
    """Accepts each one-time token once, in order, with a gap of up to TOKEN_WINDOW unused ones."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._next = 0

    def accept(self, offered: object) -> bool:
        """True, once, for a token that the launcher has handed out."""
        if not self._secret or not isinstance(offered, str):
            return False
        for number in range(self._next, self._next + TOKEN_WINDOW):
            if offered == token(self._secret, number):
                self._next = number + 1
                return True
        return False


def send(path: str | os.PathLike[str], message: bytes, timeout: float = 0.5) -> None:
    """Send one message to a unix socket and close. Raises OSError when no process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(os.fspath(path))
        connection.sendall(message)


def tell_launcher(kind: str, **fields: Any) -> None:
    """Send one message of this process's worker, in its epoch, to its launcher. Training goes on whether or not the launcher knows of it: nothing is raised, and without one nothing is sent."""
    launcher = os.environ.get("EAGLE_EYE_SOCKET")
    if launcher:
        of = {"worker": os.environ.get("EAGLE_EYE_WORKER", ""), "epoch": int(os.environ.get("EAGLE_EYE_EPOCH") or 0)}
        try:
            send(launcher, encode(kind, **(of | fields)))
        except OSError as error:
            _log.debug("the launcher was not told: %s, %s", kind, error)


def ask(path: str | os.PathLike[str], message: bytes, timeout: float = 2.0) -> ProbeMessage:
    """Send one message to a unix socket and read the one reply. Raises OSError, WireError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(os.fspath(path))
        connection.sendall(message)
        return _reply(connection)


def reply(ok: bool, **fields: Any) -> bytes:
    """An answer, as a line."""
    return encode("reply", ok=ok, **fields)


def answer_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reply itself, or WireError with the other end's error text if it refused."""
    if not message.get("ok"):
        raise WireError(str(message.get("error", "refused without a reason")))
    return message


def _reply(connection: socket.socket) -> ProbeMessage:
    lines = Lines()
    while data := connection.recv(65536):
        for line in lines.feed(data):
            return decode(line)
    raise WireError("the other end closed the connection without a reply")
