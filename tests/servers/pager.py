"""A receiver of alerts in a process of its own, which may be killed: `Pager`. Run as a script, it is that process.

It refuses with 400 what PagerDuty, Slack or Alertmanager would refuse, and with 401 a plain notification that is not signed. What
it accepts is on disk before it answers. Behaviours: answer; mute (accepts, but never answers); hang (does not even read).
"""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script it has to find the rules by itself

SECRET = "of the operator"


class Pager:
    """The process; it is started again on the same port, and remembers what it had accepted."""

    def __init__(self, folder: Path, kind: str, port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{port}/hook"
        self.kind = kind
        self._log = folder / f"{kind}.jsonl"
        self._port = port
        self._process: subprocess.Popen[str] | None = None

    def start(self, behaviour: str = "answer") -> None:
        command = [sys.executable, __file__, self.kind, str(self._port), str(self._log), behaviour]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """{"notification", "body"} of each, in order; the last line may still be under way."""
        lines = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def refused(self) -> list[str]:
        """Why something was refused."""
        return [problem for entry in self.accepted for problem in entry.get("refused", [])]

    @property
    def bodies(self) -> list[Any]:
        return [entry["body"] for entry in self.accepted]


# --- the process ---------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """One request."""

    kind: str
    log: int
    behaviour: str

    def do_POST(self) -> None:
        if self.behaviour == "hang":
            threading.Event().wait()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, refused = self._judge(body)
        entry = {"notification": self.headers.get("X-Eagle-Eye-Notification", ""), "body": json.loads(body), "refused": refused}
        os.write(self.log, json.dumps(entry).encode() + b"\n")
        if self.behaviour == "mute":
            threading.Event().wait()
        answer = json.dumps({"errors": refused}).encode() if refused else b"ok"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _judge(self, body: bytes) -> tuple[int, list[str]]:
        if self.kind == "webhook":  # an Alertmanager's
            return 200, []
        if self.kind == "plain":
            return (200, []) if self._signed(body) else (401, ["not signed"])
        from fakes.receiver_rules import refusals

        problems = refusals(self.kind, body)
        return (400, problems) if problems else ({"pagerduty": 202}.get(self.kind, 200), [])

    def _signed(self, body: bytes) -> bool:
        """As docs/alerts.md tells the author of a receiver to do it."""
        import hashlib
        import hmac
        import time

        parts = dict(part.split("=", 1) for part in self.headers.get("X-Eagle-Eye-Signature", "").split(",") if "=" in part)
        said = parts.get("t", "0")
        right = hmac.new(SECRET.encode(), said.encode() + b"." + body, hashlib.sha256).hexdigest()
        return abs(time.time() - int(said)) <= 300 and hmac.compare_digest(right, parts.get("v1", ""))

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


def main(kind: str, port: str, log: str, behaviour: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    handler = type("Bound", (Handler,), {"kind": kind, "log": file, "behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), handler)
    server.daemon_threads = True
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
