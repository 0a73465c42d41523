"""The dashboard beside a demo, where it is installed: it steps back for the job, and whatever befalls it does not befall the demo."""

import socket
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from eagle_eye import config as configuration
from eagle_eye.app.dashboard_process import LISTEN, Dashboard, installed
from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ports import free_port

NICE = 15
"""The job's throughput is being judged."""
POLL_S = 1.0


@dataclass(slots=True, kw_only=True)
class DemoDashboard:
    """The pages over one run. `open` and `look` while it goes on, `reopen` when it is over, `close` at the end."""

    folder: Path
    """Of logs."""
    console: Console
    clock: Clock
    listen: str = LISTEN
    """Where nobody listens there yet; else any free port."""
    nice: int = NICE
    _dashboard: Dashboard | None = field(default=None, init=False)
    _said: bool = field(default=False, init=False)
    _looked: float = field(default=float("-inf"), init=False)

    @property
    def url(self) -> str:
        """'' while it is not there."""
        return self._dashboard.url if self._dashboard is not None else ""

    def open(self, config_file: Path, state: Path) -> None:
        """Begin to start it; returns at once."""
        if not installed():
            self._tell("no dashboard: pip install 'eagle-eye[dashboard]' brings it")
            return
        try:
            config = configuration.load(config_file, state_dir=str(state))
            self._dashboard = Dashboard(config, _free_address(self.listen), self.clock, log=self.folder / "dashboard.log", nice=self.nice)
            self._dashboard.start()
        except (EagleEyeError, OSError) as error:
            self._failed(error)

    def look(self) -> None:
        """Say where it is, once it answers."""
        now = self.clock.monotonic()
        if self._dashboard is None or self._said or now - self._looked < POLL_S:
            return
        self._looked = now
        try:
            if self._dashboard.ready():
                self._said = True
                self._tell(f"dashboard: {self.url}")
        except EagleEyeError as error:
            self._failed(error)

    def reopen(self) -> bool:
        """Start again at the same address, now over a run that is over; waits until it answers."""
        before = self._dashboard
        if before is None:
            return False
        before.stop()
        server = msgspec.structs.replace(before.config.server, http="")
        self._dashboard = Dashboard(msgspec.structs.replace(before.config, server=server), before.listen, self.clock, log=before.log)
        try:
            self._dashboard.start()
            self._dashboard.wait()
        except EagleEyeError as error:
            self._failed(error)
            return False
        return True

    def close(self) -> None:
        """End it."""
        if self._dashboard is not None:
            self._dashboard.stop()

    def _failed(self, error: Exception) -> None:
        self.close()
        self._dashboard = None
        self._tell(f"no dashboard: {error}")

    def _tell(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _free_address(usual: str) -> str:
    """The usual one, else any that is free."""
    host, _, port = usual.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return f"{host}:{free_port()}"
    return usual
