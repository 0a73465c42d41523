"""`eagle-eye doctor --kafka`: can the brokers be reached, who may write what there, and are records signed."""

from collections.abc import Iterator

from eagle_eye.access.addresses import is_loopback
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.stream_keys import SETTING, StreamKey, stream_key
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.errors import EagleEyeError
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, INCIDENTS, JOB_SNAPSHOTS, OBSERVATIONS, OUTCOMES
from eagle_eye.stream.kafka_rights import KafkaRights, TopicRights, kafka_rights
from eagle_eye.stream.kafka_settings import brokers_of

from .check import Check

JUDGEMENTS = (FINDINGS, INCIDENTS, OUTCOMES, JOB_SNAPSHOTS, DEAD_LETTERS)
"""Topics that servers alone write."""
EVERYBODY = "User:*"


def kafka_checks(config: Config, clock: Clock) -> Iterator[Check]:
    """All of them, one after the other; nothing is written to the brokers."""
    settings = config.stream.kafka
    if not settings.brokers:
        yield Check("Kafka", False, True, "stream.kafka.brokers is empty", "name the brokers: this deployment has the embedded stream")
        return
    yield _encryption(config)
    key = None
    try:
        key = stream_key(config.access, clock)
        yield _signatures(config, key)
    except EagleEyeError as error:
        yield Check("Kafka signatures", False, True, str(error), f"name the right file in {SETTING}")
    try:
        with kafka_rights(settings) as rights:
            yield Check("Kafka brokers", True, True, settings.brokers, "")
            yield from _topics(rights, node=key is not None and key.writer.identity.kind is CertificateKind.NODE)
    except EagleEyeError as error:
        yield Check("Kafka brokers", False, True, str(error), "see docs/kafka.md, Messages, and what to do")


def _encryption(config: Config) -> Check:
    settings = config.stream.kafka
    near = all(is_loopback(f"{broker.host}:{broker.port}") for broker in brokers_of(settings))
    works = near or settings.security in ("tls", "sasl_tls")
    found = settings.security + (", on this machine" if near else "")
    return Check("Kafka encryption", works, False, found, "set stream.kafka.security to tls or sasl_tls: whoever is on the network reads the records")


def _signatures(config: Config, key: StreamKey | None) -> Check:
    remedy = f"`eagle-eye certs issue NAME --kind node` (on servers: server), and name NAME.stream in {SETTING}"
    if key is None:
        return Check("Kafka signatures", False, False, "records are not signed: whoever may write to the topic speaks for any node", remedy)
    if key.root is not None and config.access.stream_unsigned:
        return Check("Kafka signatures", False, False, f"{key.writer.identity}; unsigned records are taken, too", "access.stream_unsigned = false once all nodes have their keys")
    return Check("Kafka signatures", True, False, f"signed as {key.writer.identity}", "")


def _topics(rights: KafkaRights, *, node: bool) -> Iterator[Check]:
    found = [rights.of_topic(topic) for topic in (OBSERVATIONS, *JUDGEMENTS)]
    for each in found:
        yield _topic(each, node=node)
    yield _time(found)
    if not node:
        yield from (_writers(rights, topic) for topic in JUDGEMENTS)


def _topic(rights: TopicRights, *, node: bool) -> Check:
    name = f"Kafka {rights.topic}"
    if not rights.exists:
        return Check(name, True, False, "not there yet: the first server or agent makes it, if it may create topics", "")
    if node and rights.topic in JUDGEMENTS:
        told = {True: "this node may write it", False: "this node may not write it", None: "the brokers do not tell who may write"}[rights.writes]
        return Check(name, rights.writes is False, False, told, f"allow Write on {rights.topic} to the servers' users alone")
    wanted = {"write": rights.writes} if node else {"read": rights.reads, "write": rights.writes}
    missing = [right for right, given in wanted.items() if given is False]
    told = f"may not {' nor '.join(missing)}" if missing else f"may {' and '.join(wanted)}" if None not in wanted.values() else "the brokers do not tell"
    return Check(name, not missing, True, told, f"allow {' and '.join(right.capitalize() for right in missing)} on {rights.topic} to this user")


def _time(found: list[TopicRights]) -> Check:
    wrong = [each.topic for each in found if each.exists and each.append_time is not True]
    told = f"{', '.join(wrong)}: a writer chooses the time of its records" if wrong else "records have the brokers' time"
    return Check(
        "Kafka time of records", not wrong, False, told,
        "set message.timestamp.type=LogAppendTime: else a signed record that was recorded can be written again later",
    )  # fmt: skip


def _writers(rights: KafkaRights, topic: str) -> Check:
    name, remedy = f"Kafka writers of {topic}", f"allow Write on {topic} to the servers' users alone (docs/kafka.md, Access rules)"
    writers = rights.writers(topic)
    if not writers.rules:
        return Check(name, False, False, "the brokers have no access rules: whoever reaches them writes", f"switch their authorizer on, and {remedy}")
    if writers.principals is None:
        return Check(name, False, False, "this user may not ask for access rules", "run it as a user with Describe on the cluster")
    return Check(name, EVERYBODY not in writers.principals, False, ", ".join(writers.principals) or "nobody but super users", remedy)
