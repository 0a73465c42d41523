"""A broker, and a deployment that has its stream there; its processes are started by the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster.brokers import Tansu
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config, load
from eagle_eye.stream import Stream
from eagle_eye.stream.factory import open_stream

Site = tuple[LocalCluster, Config, Stream]


@contextmanager
def kafka_site(folder: Path, config_text: str) -> Iterator[Site]:
    """`config_text`: with {brokers} where the broker's address stands."""
    with Tansu() as broker:
        config_file = folder / "eagle-eye.toml"
        config_file.write_text(config_text.format(brokers=broker.address))
        cluster = LocalCluster(folder=folder, config_file=config_file, clock=SystemClock(), state_dir=folder / "state")
        config = load(config_file, state_dir=str(cluster.state_dir))
        stream = open_stream(config, SystemClock())
        try:
            yield cluster, config, stream
        finally:
            cluster.stop()
            stream.close()
