"""Keys of the stream: what the commands make, and what is refused before anything is written."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.access.stream_keys import StreamKey, StreamKeys, StreamWriter, stream_key
from eagle_eye.app.cli import main
from eagle_eye.clock import FakeClock
from eagle_eye.config import AccessConfig
from eagle_eye.errors import ConfigError

SERVER, NODE = CertificateKind.SERVER, CertificateKind.NODE


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def keys(tmp_path: Path) -> StreamKeys:
    made = StreamKeys(tmp_path)
    made.make()
    return made


def read(file: Path, clock: FakeClock, node: str = "") -> StreamKey:
    found = stream_key(AccessConfig(stream_key_file=str(file)), clock, node=node)
    assert found is not None
    return found


def test_a_server_derives_the_key_of_each_node_and_a_node_has_its_own_alone(keys: StreamKeys, clock: FakeClock) -> None:
    ends = clock.now() + 60.0
    node = read(keys.issue(Identity(kind=NODE, name="node-7", tenants=("a", "b")), ends=ends, out=keys.directory), clock, "node-7")
    server = read(keys.issue(Identity(kind=SERVER, name="head"), ends=ends, out=keys.directory), clock)
    assert server.root is not None
    assert node.root is None
    assert node.writer.key(server.root) == node.key
    assert StreamWriter.of(node.writer.subject) == node.writer
    for other in (
        StreamWriter(identity=Identity(kind=NODE, name="node-7"), ends=node.writer.ends),
        StreamWriter(identity=node.writer.identity, ends=node.writer.ends + 60.0),
        StreamWriter(identity=Identity(kind=SERVER, name="node-7", tenants=("a", "b")), ends=node.writer.ends),
    ):
        assert other.key(server.root) != node.key, "another name, time or tenant is another key"


def test_the_root_is_made_once_and_no_key_shows_in_a_text(keys: StreamKeys, clock: FakeClock) -> None:
    root = keys.root_file.read_bytes()
    keys.make()
    assert keys.root_file.read_bytes() == root
    assert keys.root_file.stat().st_mode & 0o777 == 0o600
    server = read(keys.issue(Identity(kind=SERVER, name="head"), ends=clock.now() + 60.0, out=keys.directory), clock)
    assert server.key.hex() not in repr(server)
    assert str(server.key) not in repr(server)


def _open_to_all(file: Path) -> None:
    file.chmod(0o644)


def _torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def _nobody(file: Path) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), "subject": "client/ada;9999999999;"}))


def _short(file: Path) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), "key": "abc"}))


@pytest.mark.parametrize(("harm", "why"), [
    (_open_to_all, "chmod 600"), (_torn, "issue it again"), (_nobody, "names no writer"), (_short, "hex digits"), (Path.unlink, "readable"),
])  # fmt: skip
def test_a_file_that_is_no_key_is_named_with_the_remedy(keys: StreamKeys, clock: FakeClock, harm: object, why: str) -> None:
    file = keys.issue(Identity(kind=NODE, name="node-7"), ends=clock.now() + 60.0, out=keys.directory)
    harm(file)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=f"node-7.stream.*{why}"):
        read(file, clock, "node-7")


def test_a_key_that_has_ended_says_how_to_make_the_next(keys: StreamKeys, clock: FakeClock) -> None:
    file = keys.issue(Identity(kind=NODE, name="node-7"), ends=clock.now() + 60.0, out=keys.directory)
    clock.advance(61.0)
    with pytest.raises(ConfigError, match="certs issue node-7 --kind node"):
        read(file, clock, "node-7")


def test_the_command_makes_them_beside_the_certificates_and_for_no_person(tmp_path: Path) -> None:
    folder = str(tmp_path / "certs")
    for words in (["init"], ["issue", "node-7", "--kind", "node", "--tenant", "a"], ["issue", "ada", "--kind", "client"]):
        done = CliRunner().invoke(main, ["certs", *words, "--dir", folder])
        assert done.exit_code == 0, done.output
    assert {path.name for path in Path(folder).iterdir()} == {"ca.pem", "ca.key", "stream.key", "node-7.pem", "node-7.key", "node-7.stream", "ada.pem", "ada.key"}
    assert "node/node-7;" in (tmp_path / "certs" / "node-7.stream").read_text()
