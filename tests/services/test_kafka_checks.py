"""`eagle-eye doctor --kafka` against the fake broker: who may write what, whose time records have, and whether they are signed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.access.stream_keys import StreamKeys
from eagle_eye.app.cli import main
from eagle_eye.clock import SystemClock
from eagle_eye.config import AccessConfig, Config, KafkaConfig, StreamConfig
from eagle_eye.errors import ConfigError
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS
from eagle_eye.stream.factory import open_stream
from eagle_eye.stream.kafka_settings import client_options
from eagle_eye.stream.signed_stream import SignedStream
from fakes.kafka_broker import FakeBroker

WRITE = 4
SERVER, NODE = CertificateKind.SERVER, CertificateKind.NODE
Checks = dict[str, tuple[bool, str]]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


def key_file(directory: Path, kind: CertificateKind, name: str) -> str:
    keys = StreamKeys(directory / "keys")
    keys.make()
    return str(keys.issue(Identity(kind=kind, name=name), ends=SystemClock().now() + 3600.0, out=directory / "keys"))


def config_of(broker: FakeBroker, directory: Path, key: str = "", *, checked: bool = False, **access: object) -> Config:
    return Config(
        state_dir=str(directory / "state"), stream=StreamConfig(kafka=KafkaConfig(brokers=broker.address, timeout_s=5.0)),
        access=AccessConfig(stream_key_file=key, **access),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def checks(broker: FakeBroker, tmp_path: Path) -> Callable[..., tuple[int, Checks]]:
    """The exit code of the command, and name → (works, found) of its lines."""

    def examine(key: str = "", timeout_s: float = 5.0, **access: object) -> tuple[int, Checks]:
        file = tmp_path / "eagle-eye.toml"
        lines = [f'stream_key_file = "{key}"', *(f"{name} = {json.dumps(value)}" for name, value in access.items())]
        file.write_text(f'[stream.kafka]\nbrokers = "{broker.address}"\ntimeout_s = {timeout_s}\n[access]\n' + "\n".join(lines))
        done = CliRunner().invoke(main, ["doctor", "--kafka", "--json", "--config", str(file)])
        read = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
        return done.exit_code, {each["name"].removeprefix("Kafka "): (each["works"], each["found"]) for each in read}

    return examine


def test_a_server_whose_brokers_keep_nodes_from_judging(broker: FakeBroker, checks: Callable[..., tuple[int, Checks]], tmp_path: Path) -> None:
    key = key_file(tmp_path, SERVER, "head")
    stream = open_stream(config_of(broker, tmp_path, key), SystemClock(), checked=True)
    for topic in (OBSERVATIONS, FINDINGS):
        stream.append(topic, [("t/j/r", b"record")])
    stream.close()
    broker.memory.rules = {FINDINGS: ["User:head"]}
    code, found = checks(key)
    assert code == 0
    assert found["signatures"] == (True, "signed as server head")
    assert found[FINDINGS] == (True, "may read and write")
    assert found["time of records"] == (True, "records have the brokers' time")
    assert found[f"writers of {FINDINGS}"] == (True, "User:head")
    assert found[INCIDENTS][1].startswith("not there yet")


@pytest.mark.parametrize(("rules", "found"), [
    (None, "the brokers have no access rules: whoever reaches them writes"),
    ({FINDINGS: ["User:*"]}, "User:*"),
])  # fmt: skip
def test_brokers_that_let_everybody_judge(broker: FakeBroker, checks: Callable[..., tuple[int, Checks]], rules: dict[str, list[str]] | None, found: str) -> None:
    broker.memory.rules = rules
    broker.memory.make(FINDINGS, 1)
    code, told = checks()
    assert code == 0, "it works, though not safely"
    assert told[f"writers of {FINDINGS}"] == (False, found)
    assert told["signatures"][0] is False
    assert told["time of records"] == (False, f"{FINDINGS}: a writer chooses the time of its records")


def test_a_node_may_write_observations_and_no_judgement(broker: FakeBroker, checks: Callable[..., tuple[int, Checks]], tmp_path: Path) -> None:
    for topic in (OBSERVATIONS, FINDINGS, INCIDENTS):
        broker.memory.make(topic, 1)
    broker.memory.denied = {FINDINGS: {WRITE}}
    _, found = checks(key_file(tmp_path, NODE, "node-a"))
    assert found["signatures"] == (True, "signed as node node-a")
    assert found[OBSERVATIONS][0]
    assert found[FINDINGS] == (True, "this node may not write it")
    assert found[INCIDENTS] == (False, "this node may write it")


def test_a_user_that_may_not_write_what_it_must_is_named(broker: FakeBroker, checks: Callable[..., tuple[int, Checks]]) -> None:
    broker.memory.make(OBSERVATIONS, 1)
    broker.memory.denied = {OBSERVATIONS: {WRITE}}
    code, found = checks()
    assert code == 1
    assert found[OBSERVATIONS] == (False, "may not write")


def test_brokers_that_are_away_are_named(broker: FakeBroker, checks: Callable[..., tuple[int, Checks]]) -> None:
    broker.stop()
    code, found = checks(timeout_s=0.5)
    assert code == 1
    assert "takes no connection" in found["brokers"][1]


def test_signed_records_go_through_the_brokers_and_forged_ones_do_not(broker: FakeBroker, tmp_path: Path) -> None:
    clock = SystemClock()
    server = open_stream(config_of(broker, tmp_path, key_file(tmp_path, SERVER, "head")), clock, checked=True)
    node = open_stream(config_of(broker, tmp_path, key_file(tmp_path, NODE, "node-a")), clock, node="node-a")
    liar = open_stream(config_of(broker, tmp_path), clock)
    node.append(OBSERVATIONS, [("t/j/r", b"true")])
    liar.append(OBSERVATIONS, [("t/j/r", b"false")])
    read = server.read(OBSERVATIONS, 0, 0)
    assert [str(message.writer) for message in read] == ["node node-a", "None"]
    assert [message.value == b"true" for message in read] == [True, False]
    assert isinstance(server, SignedStream)
    assert server.refused == 1
    assert broker.memory.configs[OBSERVATIONS]["message.timestamp.type"] == "LogAppendTime"
    for stream in (server, node, liar):
        stream.close()


def test_a_server_does_not_start_with_the_key_of_a_node_nor_a_node_with_anothers(broker: FakeBroker, tmp_path: Path) -> None:
    config = config_of(broker, tmp_path, key_file(tmp_path, NODE, "node-a"))
    with pytest.raises(ConfigError, match="--kind server"):
        open_stream(config, SystemClock(), checked=True)
    with pytest.raises(ConfigError, match="this is node node-b"):
        open_stream(config, SystemClock(), node="node-b")


@pytest.mark.parametrize(("settings", "refused"), [
    ({"brokers": "10.0.0.1:9092"}, True),
    ({"brokers": "127.0.0.1:9092,kafka.example:9092"}, True),
    ({"brokers": "10.0.0.1:9092", "insecure": True}, False),
    ({"brokers": "127.0.0.1:9092,localhost:9093,[::1]:9094"}, False),
    ({"brokers": "10.0.0.1:9092", "security": "tls"}, False),
])  # fmt: skip
def test_plain_text_to_another_machine_is_refused(settings: dict[str, object], refused: bool) -> None:
    config = KafkaConfig(**settings)  # type: ignore[arg-type]
    if not refused:
        assert client_options(config)
        return
    with pytest.raises(ConfigError, match=r"stream\.kafka\.insecure"):
        client_options(config)
