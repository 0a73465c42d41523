"""With certificates copies go over mutual TLS."""

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.credentials import Credentials
from eagle_eye.clock import SystemClock
from eagle_eye.training.checkpoint.memory_segment import MemorySegment, slot_bytes
from fakes.tls_credentials import CredentialIssuer, credential_issuer
from remediation.checkpoint import copy_wire
from remediation.checkpoint.copy_client import CopyClient
from remediation.checkpoint.copy_files import CopyFiles
from remediation.checkpoint.copy_server import CopyServer
from remediation.checkpoint.copy_states import StoredMark

from .test_copies_over_tcp import KEY, PAYLOAD, payload_of, written


@pytest.fixture
def issuer(tmp_path: Path) -> CredentialIssuer:
    return credential_issuer(tmp_path / "ca")


@pytest.fixture
def server(tmp_path: Path, issuer: CredentialIssuer) -> Iterator[CopyServer]:
    written(tmp_path / "ee-0.memory", {0: 5}).close()
    ours = issuer.credentials("n0", CertificateKind.NODE)
    served = CopyServer("127.0.0.1", KEY, lambda: CopyFiles(tmp_path, "ee-", 1), lambda *_: ((), StoredMark()), lambda *_: None, lambda _: None, ours)
    yield served
    served.close()


def test_a_copy_goes_over_mutual_tls(server: CopyServer, issuer: CredentialIssuer, tmp_path: Path) -> None:
    with closing(CopyFiles(tmp_path, "ee-", 1)) as files:
        [name] = files.names(0, 2)
    client = CopyClient(server.source, issuer.credentials("n1", CertificateKind.NODE))
    with closing(MemorySegment.create(tmp_path / "fetched.memory", slot_bytes(200, PAYLOAD), "r/n1/0")) as target, client.connected() as connection:
        assert connection.socket.version().startswith("TLS")
        client.fetch(name, client.describe(connection, name), target, 0, 1)
    assert payload_of(tmp_path / "fetched.memory", 5) == payload_of(tmp_path / "ee-0.memory", 5)


def test_who_shows_no_certificate_of_the_authority_gets_nothing(server: CopyServer, issuer: CredentialIssuer, tmp_path: Path) -> None:
    ours = issuer.credentials("n1", CertificateKind.NODE)
    other = credential_issuer(tmp_path / "another").credentials("n1", CertificateKind.NODE)
    shows_another = Credentials(authority=ours.authority, certificate=other.certificate, key=other.key, clock=SystemClock())
    trusts_another = Credentials(authority=other.authority, certificate=ours.certificate, key=ours.key, clock=SystemClock())
    for stranger in (shows_another, trusts_another):
        with pytest.raises((ConnectionError, ssl.SSLError)), CopyClient(server.source, stranger).connected() as connection:
            connection.ask({"kind": "list", "rank": 0, "world": 2})


def test_who_speaks_no_tls_gets_nothing(server: CopyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_wire, "HELLO_S", 0.1)
    with pytest.raises(ConnectionError), CopyClient(server.source, None).connected():
        pass
