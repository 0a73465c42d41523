"""A conversation with NCCL's RAS subsystem over TCP, with a limit for everything: bytes, time, tries.

Each process of a job on the node has a thread that listens at the same address, and the kernel chooses which one gets a connection: one whose process is
stopped accepts and never answers, so that a silent one is left for another connection. Lines end with a line feed:

    CLIENT PROTOCOL 2  →  SERVER PROTOCOL 2
    SET FORMAT json    →  OK (NCCL 2.28.7 and later), else ERROR: …
    VERBOSE STATUS     →  the report, and the end of the connection

(NCCL's user guide, "RAS"; src/ras/client_support.cc of NCCL 2.24 to 2.31.) The status asks all processes of the job, and takes up to ten seconds where some do not answer.
"""

import errno
import socket
from typing import NamedTuple

from eagle_eye.clock import Clock

from .ras_json import read_json
from .ras_report import RasError, RasReport
from .ras_text import read_text, whole_text

PROTOCOL = 2
REPORT_BYTES = 8 << 20
"""JSON has 600 bytes for each rank of each communicator."""
LINE_BYTES = 1024
GREETING_S = 1.0
"""As NCCL's own client waits before it tries another connection."""
TRIES = 3
NOBODY = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL)
"""The second where the name has an address of a family that this machine does not use."""
REPORT_S = 12.0
"""RAS itself gives up on silent processes after 10 s."""


class NobodyListens(RasError):
    """Nothing listens at the address: no job with RAS."""


class ReportTooLong(RasError):
    """The report has more than REPORT_BYTES."""


class _NoGreeting(Exception):
    """A connection that was accepted and on which nothing came."""


class RasAddress(NamedTuple):
    """Where RAS listens (NCCL_RAS_ADDR)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_ras_address(text: str) -> RasAddress:
    """HOST:PORT. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise ValueError(f"address {text!r}: write HOST:PORT, as in NCCL_RAS_ADDR")
    return RasAddress(host.removeprefix("[").removesuffix("]"), int(port))


def ask_ras(address: RasAddress, clock: Clock, *, as_json: bool = True, greeting_s: float = GREETING_S, report_s: float = REPORT_S) -> RasReport:
    """The state of the job. Raises RasError: NobodyListens, ReportTooLong, or another one that says what came instead."""
    for _ in range(TRIES):
        try:
            with _greeted(address, clock, greeting_s) as greeted:
                greeted.deadline = clock.monotonic() + report_s
                in_json = as_json and greeted.takes_json()
                data = greeted.report()
        except _NoGreeting:
            continue
        except TimeoutError:
            raise RasError(f"no whole report within {report_s:g} s") from None
        except OSError as error:
            raise RasError(f"the connection broke: {error.strerror or error}") from None
        return read_json(data) if in_json else read_text(whole_text(data))
    raise RasError(f"it takes connections and says nothing within {greeting_s:g} s, {TRIES} times: its process is stopped or hangs, or another program listens there")


def _greeted(address: RasAddress, clock: Clock, greeting_s: float) -> "_RasConnection":
    """Raises NobodyListens, RasError for another program, or _NoGreeting."""
    deadline = clock.monotonic() + greeting_s
    try:
        connected = socket.create_connection(address, greeting_s)
    except OSError as error:
        if error.errno in NOBODY:
            raise NobodyListens(f"nothing listens at {address}") from None
        raise RasError(f"it cannot be reached: {error.strerror or error}") from None
    greeted = _RasConnection(connected, clock, deadline)
    try:
        line = greeted.ask(f"CLIENT PROTOCOL {PROTOCOL}")
    except OSError:  # a time-out, or a process that is ended
        connected.close()
        raise _NoGreeting from None
    except BaseException:
        connected.close()
        raise
    if not line.upper().startswith("SERVER PROTOCOL "):
        connected.close()
        raise RasError(f"it is no RAS of NCCL: it answers {line[:80]!r}")
    return greeted


class _RasConnection:
    """Lines to and from one process; each wait ends at a deadline."""

    def __init__(self, connected: socket.socket, clock: Clock, deadline: float) -> None:
        self._socket, self._clock, self._rest = connected, clock, b""
        self.deadline = deadline
        """Monotonic time."""

    def __enter__(self) -> "_RasConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, command: str) -> str:
        """The line that comes back; '' at an end. Raises RasError for a line without end, and OSError."""
        self._send(command)
        while b"\n" not in self._rest:
            if len(self._rest) > LINE_BYTES:
                raise RasError(f"it is no RAS of NCCL: it answers {self._rest[:80]!r} …")
            if not (data := self._receive()):
                break
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def takes_json(self) -> bool:
        """Whether the report will be in JSON; an older NCCL knows no such command."""
        return self.ask("SET FORMAT json").upper() == "OK"

    def report(self) -> bytes:
        """Everything up to the end of the connection. Raises ReportTooLong and OSError."""
        self._send("VERBOSE STATUS")
        pieces, count = [self._rest], len(self._rest)
        while data := self._receive():
            pieces.append(data)
            count += len(data)
            if count > REPORT_BYTES:
                raise ReportTooLong(f"its report has more than {REPORT_BYTES >> 20} MiB")
        return b"".join(pieces)

    def _send(self, command: str) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(f"{command}\n".encode())

    def _receive(self) -> bytes:
        self._socket.settimeout(self._left())
        return self._socket.recv(65_536)

    def _left(self) -> float:
        left = self.deadline - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
