"""The status that a raised exception tells: by its words, and of the network only by its type and the place where it was raised.

A peer's end reaches a healthy worker through torch.distributed, c10d, gloo, NCCL or our own exchange. The same words from anywhere else are those of
the script, or of a service that it asks: a web server refuses connections, too. Launcher and detectors both ask here, so that they agree.
"""

import re
from collections.abc import Iterator, Sequence

from eagle_eye.error_statuses import BY_NAME, DIST_ERROR, ErrorStatus, classify, may_tell_of_a_peer

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "/eagle_eye/", "<frozen ")
_STANDARD_LIBRARY = re.compile(r"/lib/python[\d.]+/(?!.*(?:site|dist)-packages/)|^<")
_EXCHANGE = re.compile(r"/torch/distributed/(?!checkpoint/)|/eagle_eye/training/elastic/")
"""Files of torch's and our own exchange. A distributed checkpoint is written by it, but to a file system or a service."""
_NATIVE = re.compile(
    r"\[[^\]\s]*(?:\bgloo/[\w/]+|c10d/\w+|\b(?:pair|unbound_buffer|buffer|context|device|listener|loop|socket))\.(?:cc|cpp|h|hpp):\d+\]"
    r"|\bnccl\w+error\b|\bNCCL (?:error|communicator|operation)|watchdog caught collective|gloo connectfullmesh|process ?group (?:was|is) aborted",
    re.IGNORECASE,
)
"""As gloo (with its source file and line), c10d and NCCL word it. Their C++ leaves no frame: the innermost may be the user's own `backward()`."""
_PEER_GONE = re.compile(r"\bconnection (closed|reset) by peer", re.IGNORECASE)
"""In a RuntimeError: so says native code of whatever exchange (MPI, UCX, a library's own). Python's sockets raise OSErrors."""
_ENDED_BY_PEER = frozenset({"ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError"})
"""Of a socket between two ranks that the script has made itself, where its own line raises it: whoever asks a service does that through a library."""

_RAISED = re.compile(r"\s*[\w.]*(Error|Exception|Interrupt)\b")
"""The line of a traceback that names the exception; other output is not read for causes."""
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What torch puts before each line of a traceback once there is a process group."""


def status_raised(type_name: str, message: str, traceback: str, frame: str = "") -> ErrorStatus:
    """What an exception tells. `frame`: the innermost one of the user's own code, where no traceback is kept; without either the words have to do.

    >>> url = '  File "/home/a/train.py", line 212, in load\\n'
    >>> status_raised("ConnectionRefusedError", "[Errno 111] Connection refused", url).name, status_raised("ConnectionRefusedError", "", "").name
    ('other software error', 'connection refused or reset')
    """
    status = classify(f"{type_name}: {message}")
    return BY_NAME["other software error"] if status.symptom and not _of_the_exchange(type_name, message, traceback, frame) else status


def words_of_the_network(type_name: str, message: str, status: ErrorStatus) -> bool:
    """Its words are the network's, though `status` is not: a service that the script asks may have been away."""
    return not status.symptom and classify(f"{type_name}: {message}").symptom


def _of_the_exchange(type_name: str, message: str, traceback: str, frame: str) -> bool:
    if not may_tell_of_a_peer(type_name):
        return False
    files = [found["file"] for found in _FRAME.finditer(traceback) if not _STANDARD_LIBRARY.search(found["file"])]
    if type_name in _ENDED_BY_PEER and files and not any(part in files[-1] for part in _LIBRARY):
        return True
    native = _NATIVE.search(message) or (type_name == "RuntimeError" and _PEER_GONE.search(message))
    if DIST_ERROR.search(type_name) or native or not (files or frame):
        return True
    return bool(files) and _EXCHANGE.search(files[-1]) is not None


def user_frame(traceback: str) -> str:
    """The innermost frame of the user's own code, such as `train.py:212 in validate`; '' if the traceback has none."""
    for found in reversed(list(_FRAME.finditer(traceback))):
        if not any(part in found["file"] for part in _LIBRARY):
            return f"{found['file'].rpartition('/')[2]}:{found['line']} in {found['function']}"
    return ""


# --- what a process has printed -----------------------------------------------------------------------------------------


def printed_lines(text: str) -> list[str]:
    """The lines of a log without the rank that torch puts before them."""
    return _RANK.sub("", text).splitlines()


def names_an_exception(line: str) -> bool:
    """The last line of a traceback does."""
    return _RAISED.match(line) is not None


def printed_exceptions(lines: Sequence[str]) -> Iterator[ErrorStatus]:
    """What each exception in the lines tells, in their order."""
    frames: list[str] = []
    for line in lines:
        if names_an_exception(line):
            yield status_printed(line, frames)
            frames.clear()
        else:
            frames.append(line)


def status_printed(line: str, before: Sequence[str]) -> ErrorStatus:
    """Of an exception that was printed: its line, and the lines since the one before."""
    type_name, _, message = line.strip().partition(":")
    return status_raised(type_name, message.strip(), "\n".join(before))
