"""A real Alertmanager of Debian's packages, impatient: it tells after a second what it was told."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx

from eagle_eye.clock import SystemClock
from eagle_eye.ports import free_port

BINARY = "prometheus-alertmanager"
CONFIG = """
global: {{resolve_timeout: 1h}}
route: {{receiver: hook, group_by: [alertname, job], group_wait: 200ms, group_interval: 500ms, repeat_interval: 1h}}
receivers: [{{name: hook, webhook_configs: [{{url: '{hook}', send_resolved: true}}]}}]
"""


class Alertmanager:
    """On a free port of loopback; routes everything to the address of `hook`."""

    def __init__(self, folder: Path, hook: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.config = folder / "alertmanager.yml"
        self.config.write_text(CONFIG.format(hook=hook))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it is ready."""
        listen = self.url.removeprefix("http://")
        options = [f"--config.file={self.config}", f"--storage.path={self.folder / 'data'}", f"--web.listen-address={listen}", "--cluster.listen-address="]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([BINARY, *options], stdout=log, stderr=log)
        clock = SystemClock()
        deadline = clock.monotonic() + 30
        while not self._ready():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert clock.monotonic() < deadline
            clock.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def amtool(self, *arguments: str) -> Any:
        """What Alertmanager's own tool says, as JSON."""
        asked = ["amtool", *arguments, f"--alertmanager.url={self.url}", "--output=json"]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def firing(self) -> dict[str, dict[str, Any]]:
        """Incident, or the alert's name → the alert, of those that are active."""
        alerts = self.amtool("alert", "query")
        return {alert["labels"].get("eagle_eye_incident", alert["labels"]["alertname"]): alert for alert in alerts}

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready").status_code == 200
        except httpx.HTTPError:
            return False
