"""One connection between two launchers over which a copy goes: who is at the other end is proved, each message is, and nothing is pickled.

The key comes over the control channel. Both ends show with a keyed digest of two random numbers that they have it, and derive a key for each
direction; each message is `length, JSON, keyed digest`, the digest over its number, too: none can be changed, repeated or left out. The bytes of a
tensor follow plain, since what reads them checks them against sums that came in a message. With certificates all of it is inside mutual TLS.
"""

import hmac
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import msgspec

from eagle_eye.access.credentials import Credentials
from eagle_eye.errors import AccessDenied, WireError

LONGEST = 1 << 20
"""Bytes of a message."""
TIMEOUT_S = 10.0
"""The other end sends or takes nothing for so long: the connection is given up."""
HELLO_S = 5.0
"""How long a caller may take to show that it has the key."""
UNSENT = 1 << 16
"""Bytes that a connection has taken from us and not sent, about; what is on its way over the network is not among them. With the kernel's own megabytes, which are out of
the cache by then, both ends together take 1.4 times as much processor time for a copy."""
_MAC, _NONCE = 32, 32
_LENGTH = struct.Struct("<I")
_TIMEVAL = struct.Struct("@2l")
CopyMessage = Mapping[str, Any]


class Source(NamedTuple):
    """Where a launcher serves its copies; it tells so over the control channel."""

    host: str
    port: int
    key: bytes


class ProcessorTime:
    """Of the threads that send and fetch copies: `with` adds what the thread has used within it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._thread = threading.local()

    def __enter__(self) -> None:
        self._thread.began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        used = time.thread_time() - self._thread.began
        with self._lock:
            self.seconds += used


class CopyConnection:
    """Either end. Raises OSError as sockets do, WireError and AccessDenied for what is not of this protocol."""

    def __init__(self, connection: socket.socket, sending: bytes, receiving: bytes) -> None:
        self.socket = connection
        self.is_encrypted = isinstance(connection, ssl.SSLSocket)
        if not self.is_encrypted:
            _wait_in_kernel(connection)
        self._sending, self._receiving = sending, receiving
        self._sent = self._received = 0

    @classmethod
    def to(cls, source: Source, credentials: Credentials | None) -> Self:
        """Connect."""
        connection = socket.create_connection((source.host, source.port), TIMEOUT_S)
        try:
            _prompt(connection)
            if credentials is not None:
                connection = client_context(credentials).wrap_socket(connection, server_hostname=source.host)
            theirs, ours = _exactly(connection, _NONCE), os.urandom(_NONCE)
            connection.sendall(ours + _mac(source.key, b"client", theirs, ours))
            if not hmac.compare_digest(_exactly(connection, _MAC), _mac(source.key, b"server", theirs, ours)):
                raise AccessDenied(f"who answers at {source.host}:{source.port} is not the launcher that was asked for")
            return cls(connection, _mac(source.key, b"up", theirs, ours), _mac(source.key, b"down", theirs, ours))
        except BaseException:
            connection.close()
            raise

    @classmethod
    def of(cls, connection: socket.socket, key: bytes, tls: ssl.SSLContext | None) -> Self:
        """Of one that was accepted."""
        connection.settimeout(HELLO_S)
        _prompt(connection)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_side=True)
        ours = os.urandom(_NONCE)
        connection.sendall(ours)
        theirs = _exactly(connection, _NONCE)
        if not hmac.compare_digest(_exactly(connection, _MAC), _mac(key, b"client", ours, theirs)):
            raise AccessDenied("a caller for copies of checkpoints does not have the key")
        connection.sendall(_mac(key, b"server", ours, theirs))
        connection.settimeout(TIMEOUT_S)
        return cls(connection, _mac(key, b"down", ours, theirs), _mac(key, b"up", ours, theirs))

    def send(self, message: CopyMessage) -> None:
        body = msgspec.json.encode(message)
        if len(body) > LONGEST:
            raise WireError(f"a message of {len(body)} bytes is longer than {LONGEST}")
        mac = _mac(self._sending, self._sent.to_bytes(8, "little"), body)
        self._sent += 1
        self.send_bytes(_LENGTH.pack(len(body)) + body + mac)

    def receive(self) -> dict[str, Any]:
        [length] = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > LONGEST:
            raise WireError(f"a message of {length} bytes is longer than {LONGEST}")
        body, mac = self._exactly(length), self._exactly(_MAC)
        if not hmac.compare_digest(mac, _mac(self._receiving, self._received.to_bytes(8, "little"), body)):
            raise WireError("a message was changed on its way, repeated or left out (digest)")
        self._received += 1
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise WireError(f"a message is not understood: {error}") from error

    def ask(self, message: CopyMessage) -> dict[str, Any]:
        self.send(message)
        return self.receive()

    def send_bytes(self, content: bytes | memoryview) -> None:
        """Of a message, or what follows one."""
        try:
            self.socket.sendall(content)
        except BlockingIOError as error:
            raise TimeoutError(f"the other end took nothing for {TIMEOUT_S:g} s") from error

    def receive_into(self, target: memoryview) -> None:
        """The bytes that follow a message: where nothing is encrypted by one system call for all of them."""
        at, flags = 0, 0 if self.is_encrypted else socket.MSG_WAITALL
        while at < len(target):
            try:
                count = self.socket.recv_into(target[at:], 0, flags)
            except BlockingIOError as error:
                raise TimeoutError(f"the other end sent nothing for {TIMEOUT_S:g} s") from error
            if not count:
                raise ConnectionResetError("the connection was closed in the middle of a copy")
            at += count

    def _exactly(self, count: int) -> bytes:
        found = bytearray(count)
        self.receive_into(memoryview(found))
        return bytes(found)

    def close(self) -> None:
        self.socket.close()


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Mutual TLS with the files of the control channel."""
    context = ssl.create_default_context(cafile=os.fspath(credentials.authority))
    context.load_cert_chain(credentials.certificate, credentials.key)
    return context


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Asks everybody for a certificate of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(credentials.certificate, credentials.key)
    context.load_verify_locations(cafile=os.fspath(credentials.authority))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _prompt(connection: socket.socket) -> None:
    """Short messages are not kept back for longer ones, and little waits to be sent: the processor's cache still has it when it is."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)


def _wait_in_kernel(connection: socket.socket) -> None:
    """The kernel ends what takes too long: Python's own time-outs ask before each piece whether there is one, and get what little is there by then."""
    connection.settimeout(None)
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, direction, _TIMEVAL.pack(int(TIMEOUT_S), round(TIMEOUT_S % 1 * 1e6)))


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        found += piece
    return bytes(found)


def _mac(key: bytes, *parts: bytes) -> bytes:
    digest = blake2b(key=key, digest_size=_MAC)
    for part in parts:
        digest.update(part)
    return digest.digest()
