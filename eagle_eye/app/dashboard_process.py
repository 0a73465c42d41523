"""The dashboard as a process of its own: Streamlit with every setting as a flag, started, waited for, and ended."""

import importlib.util
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from eagle_eye.access.addresses import is_loopback
from eagle_eye.access.tokens import Tokens
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.parent_death import of_ours
from eagle_eye.ports import address_problem

LISTEN = "127.0.0.1:8501"
START_S = 60.0
"""Streamlit takes a second or two where nothing else runs."""
POLL_S = 0.2


@dataclass(slots=True)
class Dashboard:
    """One Streamlit over one deployment. `start`, `wait`, `stop`."""

    config: Config
    listen: str
    """host:port."""
    clock: Clock
    log: Path | None = None
    """Where its output goes; None: to ours."""
    nice: int = 0
    """How much it steps back for other processes of the machine."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Of the first page; where it listens on every address, as this machine reaches it."""
        host, port = self._host_and_port()
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- how it is reached, not where it listens
        return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"

    def start(self) -> None:
        """Start it; returns at once. Raises ConfigError where it must not listen, or is not installed."""
        if not installed():
            raise ConfigError("the dashboard is not installed here: pip install 'eagle-eye[dashboard]'")
        host, port = self._host_and_port()
        refuse_open(self.config, self.listen, self.clock)
        from dashboard import sources, theme

        room = Path(sources.__file__).parent
        script = room / "entry" / "app.py"
        command = [*(("nice", "-n", str(self.nice)) if self.nice else ()), sys.executable, "-P", "-m", "dashboard.entry", "run", str(script), f"--server.address={host}", f"--server.port={port}", *theme.flags()]
        # -P: the folder that it runs in must not become a place of modules: html.py would hide the html of Python
        path = os.pathsep.join([str(room.parent), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        environment = {**of_ours(), "PYTHONPATH": path, sources.VARIABLE: msgspec.json.encode(_settled(self.config)).decode()}
        out: IO[bytes] | None = self.log.open("ab") if self.log else None
        try:
            self.process = subprocess.Popen(command, cwd=room, env=environment, stdin=subprocess.DEVNULL, stdout=out or sys.stderr, stderr=out or sys.stderr, start_new_session=True)
        finally:
            if out is not None:
                out.close()

    def ready(self) -> bool:
        """Whether it answers. Raises ConfigError when it has ended."""
        if self.process is None or self.process.poll() is not None:
            code = None if self.process is None else self.process.returncode
            output = f"its output is in {self.log}" if self.log else "its output is above"
            raise ConfigError(f"the dashboard ended with {code} before it answered at {self.listen}: {output}; is the address free? --listen names another")
        try:
            with _opener().open(f"{self.url}/_stcore/health", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait(self, seconds: float = START_S) -> None:
        """Until it answers. Raises ConfigError."""
        deadline = self.clock.monotonic() + seconds
        while not self.ready():
            if self.clock.monotonic() >= deadline:
                raise ConfigError(f"the dashboard did not answer at {self.url} within {seconds:.0f} s")
            self.clock.sleep(POLL_S)

    def stop(self, grace: float = 5.0) -> None:
        """End it, whatever it does; nothing happens if it has ended."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _host_and_port(self) -> tuple[str, int]:
        if problem := address_problem(self.listen, LISTEN):
            raise ConfigError(f"--listen {self.listen!r} is no address: {problem}")
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


def installed() -> bool:
    """Whether what it needs is there."""
    return importlib.util.find_spec("streamlit") is not None and importlib.util.find_spec("plotly") is not None


def refuse_open(config: Config, address: str, clock: Clock) -> None:
    """Raises ConfigError for pages that anybody could use."""
    if not (is_loopback(address) or config.server.insecure or Tokens.of(config, clock).configured):
        raise ConfigError(
            f"{address} can be reached from other machines, and everybody there would be an administrator: make a token with "
            "`eagle-eye token add NAME`, listen on 127.0.0.1, or set server.insecure = true on a network that you trust wholly"
        )


def _settled(config: Config) -> Config:
    """With absolute paths: the child has another working directory."""
    access = config.access
    settled = {name: _absolute(getattr(access, name)) for name in ("ca_file", "certificate_file", "key_file", "tokens_file", "token_file")}
    ledger = msgspec.structs.replace(config.ledger, password_file=_absolute(config.ledger.password_file))
    place = config.history.location
    history = msgspec.structs.replace(config.history, location=place if "://" in place else _absolute(place))
    return msgspec.structs.replace(
        config, state_dir=str(config.state), run_dir=str(config.run), access=msgspec.structs.replace(access, **settled), ledger=ledger, history=history
    )


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _opener() -> urllib.request.OpenerDirector:
    """No proxy stands between two processes of ours."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
