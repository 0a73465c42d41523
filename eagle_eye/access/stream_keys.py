"""Keys with which writers sign their records of the stream. Servers hold the root, and derive each writer's key from it; a node holds its own alone.

    ca directory/stream.key     the root: 64 hex digits
    NAME.stream                 JSON: who writes, its key, and of servers the root

The key of a writer is HMAC-SHA-256 of its subject under the root: a key that is derived from another name, or lasts longer, is another key.
"""

import hashlib
import hmac
import re
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.config import AccessConfig
from eagle_eye.errors import UNREADABLE, ConfigError

from .certificates import NAME, CertificateKind, Identity
from .secret_files import read_private, write_private

ROOT_FILE = "stream.key"
SUFFIX = ".stream"
SETTING = "access.stream_key_file"
KEY_BYTES = 32
_PURPOSE = b"eagle-eye stream 1\n"
_SUBJECT = re.compile(r"(server|node)/([^;]+);(\d{1,12});([^;]*)")
_HEX = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWriter:
    """Who signs, and until when."""

    identity: Identity
    ends: float
    """Seconds since 1970."""

    @property
    def subject(self) -> str:
        """What stands in each of its records: kind/name;end;tenants."""
        identity = self.identity
        return f"{identity.kind}/{identity.name};{self.ends:.0f};{','.join(identity.tenants)}"

    @classmethod
    def of(cls, subject: str) -> "StreamWriter | None":
        """From a subject; None if it is none."""
        found = _SUBJECT.fullmatch(subject)
        if found is None or not NAME.fullmatch(found[2]):
            return None
        tenants = tuple(found[4].split(",")) if found[4] else ()
        return cls(identity=Identity(kind=CertificateKind(found[1]), name=found[2], tenants=tenants), ends=float(found[3]))

    def key(self, root: bytes) -> bytes:
        """32 bytes."""
        return hmac.digest(root, _PURPOSE + self.subject.encode(), hashlib.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamKey:
    """What a process signs with, and what it reads with."""

    writer: StreamWriter
    key: bytes = field(repr=False)
    root: bytes | None = field(default=None, repr=False)
    """None: it may not know the keys of others, and takes what it reads as it is."""


class _KeyFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    subject: str
    key: str
    root: str = ""


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The root that lies in a directory, beside the certificate authority."""

    directory: Path

    @property
    def root_file(self) -> Path:
        return self.directory / ROOT_FILE

    def make(self) -> None:
        """Make the root if there is none. Raises ConfigError."""
        if not self.root_file.exists():
            write_private(self.root_file, secrets.token_hex(KEY_BYTES).encode() + b"\n")

    def issue(self, identity: Identity, *, ends: float, out: Path) -> Path:
        """NAME.stream of a node or a server, in `out`; the one before is replaced. Raises ConfigError."""
        root = _bytes_of(read_private(self.root_file, "the root of the stream's keys").decode(errors="replace").strip(), self.root_file)
        writer = StreamWriter(identity=identity, ends=ends)
        shown = root.hex() if identity.kind is CertificateKind.SERVER else ""
        path = out / f"{identity.name}{SUFFIX}"
        write_private(path, msgspec.json.encode(_KeyFile(subject=writer.subject, key=writer.key(root).hex(), root=shown)))
        return path


def stream_key(access: AccessConfig, clock: Clock, *, node: str = "") -> StreamKey | None:
    """This process's key; None where the configuration names none. Raises ConfigError for one that cannot work.

    `node`: what `{node}` in the name of the file stands for (default: the host name), and whom a node's key must name.
    """
    if not access.stream_key_file:
        return None
    path = Path(access.stream_key_file.replace("{node}", node or socket.gethostname())).expanduser()
    found = _read(path)
    identity = found.writer.identity
    if clock.now() >= found.writer.ends:
        raise ConfigError(f"{SETTING} {path} has ended: issue it again with `eagle-eye certs issue {identity.name} --kind {identity.kind}`")
    if node and identity.kind is CertificateKind.NODE and identity.name != node:
        raise ConfigError(f"{SETTING} {path} is the key of {identity}, and this is node {node}: issue one with `eagle-eye certs issue {node} --kind node`")
    return found


def _read(path: Path) -> StreamKey:
    try:
        read = msgspec.json.decode(read_private(path, SETTING), type=_KeyFile)
    except UNREADABLE:  # its message may quote the key
        raise ConfigError(f"{SETTING} {path} is no file of `eagle-eye certs issue`: issue it again") from None
    writer = StreamWriter.of(read.subject)
    if writer is None:
        raise ConfigError(f"{SETTING} {path} names no writer: issue it again with `eagle-eye certs issue`")
    root = _bytes_of(read.root, path) if read.root else None
    return StreamKey(writer=writer, key=_bytes_of(read.key, path), root=root)


def _bytes_of(text: str, path: Path) -> bytes:
    if not _HEX.fullmatch(text):
        raise ConfigError(f"{path} holds no key of {2 * KEY_BYTES} hex digits: issue it again with `eagle-eye certs issue`")
    return bytes.fromhex(text)
