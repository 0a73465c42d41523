"""Attempts on the stream: whoever may write to the brokers forges records, writes recorded ones again, or judges in a server's place."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.brokers import Tansu
from benchmarks.faults.attempt import Answer, Kind, line_with
from benchmarks.faults.server_process import ANSWER_S, START_S, until
from eagle_eye import wire
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.access.stream_keys import StreamKeys
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.config import AccessConfig, KafkaConfig, StreamConfig
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Stream
from eagle_eye.stream.factory import open_stream_in
from eagle_eye.types import Entity, Event, Layout, RankPlacement
from eagle_eye.types import Kind as EntityKind

JOB = "team-a/gpt/run1"
OTHER = "team-b/gpt/run1"
LATE_S = 2.0
"""A signed record that is older when it comes was recorded: the default is ten minutes."""
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[history]
enabled = false

[stream.kafka]
brokers = "{brokers}"

[access]
stream_key_file = "{keys}/head.stream"
stream_late_s = {late_s}
"""


@dataclass
class SignedCluster:
    """A real broker, a real server, and the writers of its stream."""

    cluster: LocalCluster
    brokers: str
    keys: Path

    def writer(self, name: str = "") -> Stream:
        """A process with the key of that name; with none, whoever reaches the brokers."""
        access = AccessConfig(stream_key_file=str(self.keys / f"{name}.stream") if name else "")
        return open_stream_in(self.keys, StreamConfig(kafka=KafkaConfig(brokers=self.brokers)), SystemClock(), access=access)

    @property
    def log(self) -> str:
        return self.cluster.tail("server", 10_000)

    def incidents(self, job: str) -> int:
        ledger = Ledger.open(self.cluster.state_dir / "ledger.sqlite", read_only=True)
        try:
            return len(ledger.incidents(job=job, limit=100))
        finally:
            ledger.close()


@asynccontextmanager
async def signed_cluster(folder: Path) -> AsyncIterator[SignedCluster]:
    """Where a true death becomes an incident: what is not told below is not told for want of a reader."""
    keys = StreamKeys(folder / "keys")
    keys.make()
    ends = SystemClock().now() + 3600.0
    for identity in (
        Identity(kind=CertificateKind.SERVER, name="head"),
        Identity(kind=CertificateKind.NODE, name="node-a", tenants=("team-a",)),
        Identity(kind=CertificateKind.NODE, name="node-b", tenants=("team-b",)),
    ):
        keys.issue(identity, ends=ends, out=keys.directory)
    with Tansu() as broker:
        file = folder / "eagle-eye.toml"
        file.write_text(CONFIG.format(port=free_port(), brokers=broker.address, keys=keys.directory, late_s=LATE_S))
        cluster = LocalCluster(folder=folder, config_file=file, clock=SystemClock(), state_dir=folder / "state")
        try:
            cluster.start_server()
            parts = SignedCluster(cluster, broker.address, keys.directory)
            await until(lambda: "evaluating from offset" in parts.log, START_S)
            true = "team-a/true/run1"
            await asyncio.to_thread(_written, parts.writer("node-a"), true, "node-a")
            await until(lambda: parts.incidents(true) == 1, START_S)
            yield parts
        finally:
            cluster.stop()


def _death(job: str, node: str, number: int = 1) -> list[tuple[str, bytes]]:
    """A layout, and the exit of one of its workers."""
    now, worker = SystemClock().now(), f"{job.rpartition('/')[2]}/{node}/0"
    place = RankPlacement(worker=worker, rank=0, node=node, local_rank=0)
    layout = Layout(job=job, epoch=1, time=now, coordinator=node, launchers={node: f"{node}:1"}, placements=(place,))
    attributes = {"code": "-9", "signal": "SIGKILL", "epoch": "1"}
    event = Event(name="exit", job=job, entity=Entity(kind=EntityKind.WORKER, name=worker), time=now, node=node, incarnation="i", number=number, attributes=attributes)
    return [(job, wire.encode(layout)), (job, wire.encode(event))]


def _written(stream: Stream, job: str, node: str) -> None:
    try:
        stream.append(OBSERVATIONS, _death(job, node))
    finally:
        stream.close()


async def _judged(parts: SignedCluster, job: str, words: str, write: Callable[[], None]) -> Answer:
    """Refused if no incident of the job comes of it, though it was read."""
    await asyncio.to_thread(write)
    told = ""
    try:
        await until(lambda: bool(line_with(parts.log, words)), ANSWER_S)
        told = line_with(parts.log, words)
    except (TimeoutError, EagleEyeError):
        pass
    return Answer(bool(told) and parts.incidents(job) == 0, told)


async def _forged(parts: SignedCluster) -> Answer:
    """Unsigned, and with the key of another tenant's node."""
    unsigned = await _judged(parts, f"{JOB}-unsigned", "carries no signature", lambda: _written(parts.writer(), f"{JOB}-unsigned", "node-a"))
    other = await _judged(parts, f"{JOB}-other", "speaks for node node-a", lambda: _written(parts.writer("node-b"), f"{JOB}-other", "node-a"))
    tenant = await _judged(parts, f"{JOB}-tenant", "may not speak for", lambda: _written(parts.writer("node-b"), f"{JOB}-tenant", "node-b"))
    answers = (unsigned, other, tenant)
    return Answer(all(answer.refused for answer in answers), "; ".join(answer.told for answer in answers) if all(answer.told for answer in answers) else "")


async def _again(parts: SignedCluster) -> Answer:
    """Recorded from the brokers, and appended as it was."""
    job = f"{JOB}-again"
    node, anybody = parts.writer("node-a"), parts.writer()
    try:
        place = node.partition_of(OBSERVATIONS, job)
        begin = anybody.end(OBSERVATIONS, place)
        await asyncio.to_thread(node.append, OBSERVATIONS, _death(job, "node-a"))
        await until(lambda: parts.incidents(job) == 1, ANSWER_S)
        recorded = [(message.key, message.value) for message in anybody.read(OBSERVATIONS, place, begin) if message.key == job]
        await asyncio.sleep(LATE_S + 1.0)  # it is the time itself that makes it old
        await asyncio.to_thread(anybody.append, OBSERVATIONS, recorded)
        await until(lambda: bool(line_with(parts.log, "written again")), ANSWER_S)
        return Answer(parts.incidents(job) == 1, line_with(parts.log, "written again"))
    finally:
        node.close()
        anybody.close()


async def _judgement(parts: SignedCluster) -> Answer:
    """A node that writes an incident: what the topic holds of the true one, under its own signature."""
    def write() -> None:
        node, anybody = parts.writer("node-a"), parts.writer()
        try:
            for topic in (FINDINGS, INCIDENTS):
                true = anybody.read(topic, 0, 0)[-1].value
                cut = true.rindex(b"}") + 1  # without the server's signature
                node.append(topic, [(OTHER, true[:cut].replace(b"team-a/true/run1", OTHER.encode()))])
        finally:
            node.close()
            anybody.close()

    return await _judged(parts, OTHER, "servers alone do", write)


async def _plain(parts: SignedCluster) -> Answer:
    """A server whose brokers are on another machine, in plain text."""
    file = parts.keys / "plain.toml"
    file.write_text(CONFIG.format(port=free_port(), brokers="192.0.2.1:9092", keys=parts.keys, late_s=LATE_S))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "eagle_eye.app.cli", "server", "--config", str(file), "--state-dir", str(parts.keys / "plain"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), START_S)
    except TimeoutError:
        process.kill()
        return Answer(False, "")
    return Answer(process.returncode not in (0, None), line_with(output.decode(), "plaintext"))


KIND = Kind(
    "records",
    signed_cluster,
    {
        "a record that is forged, or signed with another node's key": _forged,
        "a record that was recorded and is written again": _again,
        "a judgement (finding, incident) that a node writes": _judgement,
        "a stream in plain text beyond loopback": _plain,
    },
)
