"""A real PostgreSQL of Debian's packages, in a directory of its own. It refuses root: then it runs as `postgres`."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from eagle_eye.ports import free_port

USER = "eagle"
PASSWORD = "of-the-test"


class Postgres:
    """One server on a free port of loopback, made by `initdb`; `url` names an empty database of each caller."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="eagle-eye-postgres-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self._binaries = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run("initdb", "-D", str(self.folder / "data"), "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync", "-E", "UTF8")

    def start(self) -> None:
        """Start and wait until it answers."""
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder), "-c", "fsync=off", "-c", "shared_buffers=16MB"]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(self._as_user("postgres", "-D", str(self.folder / "data"), *options), stdout=log, stderr=log)
        log.close()
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        deadline = time.monotonic() + 60
        while subprocess.run(ready).returncode != 0:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT: every connection is cut at once (a "fast" shutdown); SIGQUIT: as if the machine had crashed."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def new_url(self) -> str:
        """The URL, password left out, of a new and empty database."""
        self._made += 1
        name = f"ledger{self._made}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, name, PGPASSWORD=PASSWORD)
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str, **environment: str) -> None:
        done = subprocess.run(self._as_user(program, *arguments), env=os.environ | environment, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr

    def _as_user(self, program: str, *arguments: str) -> Sequence[str]:
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return [*user, str(self._binaries / program), *arguments]
