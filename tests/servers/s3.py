"""A real S3 server of loopback: moto's, in a process of its own. What it holds goes with the process."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
from s3fs import S3FileSystem

from eagle_eye.clock import SystemClock
from eagle_eye.ports import free_port

BUCKET = "models"


class S3Server:
    """On a free port; `environment` is what its clients need."""

    def __init__(self, log: Path) -> None:
        self._log, self._port = log, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }  # fmt: skip

    def start(self) -> None:
        """Start, with an empty bucket, and wait until it answers."""
        S3FileSystem.clear_instance_cache()  # those of another server's port
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)], stdout=log, stderr=log)
        clock = SystemClock()
        deadline = clock.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert clock.monotonic() < deadline
            clock.sleep(0.05)
        self.client.call_s3("create_bucket", Bucket=BUCKET)

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    @property
    def client(self) -> Any:
        """s3fs, of this process, whose environment is to be ours."""
        return fsspec.filesystem("s3", use_listings_cache=False)

    @property
    def keys(self) -> list[str]:
        """Of all objects."""
        return [each["Key"] for each in self.client.call_s3("list_objects_v2", Bucket=BUCKET).get("Contents", ())]

    @property
    def unfinished(self) -> list[str]:
        """Keys of uploads that were begun and not completed."""
        return [each["Key"] for each in self.client.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", ())]

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True
