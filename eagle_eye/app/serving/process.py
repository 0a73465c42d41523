"""One process of the server, from its first moment to its last."""

import asyncio
import logging
import secrets
import signal
import threading

from eagle_eye.app import parts
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config
from eagle_eye.ledger.opening import open_ledger
from eagle_eye.stream.opening import open_stream

from . import access
from .leading import Lead
from .services import Around, Running, of_process

log = logging.getLogger(__name__)


def serve(config: Config, listen: str = "") -> None:
    """Run in the role of the configuration until Ctrl-C or SIGTERM. Raises an EagleEyeError for what cannot be started."""
    parts.log_to_stderr()
    parts.check(config, "the configuration")
    clock, address = SystemClock(), listen or config.server.listen
    if config.server.role != "detect":
        access.check(config, address, clock)
    asyncio.run(Process(config, address, clock).run())


class Process:
    """Ledger, stream, the services that every role has, and the roles."""

    def __init__(self, config: Config, listen: str, clock: Clock) -> None:
        self._config = config
        self._listen = listen
        self._clock = clock
        self._stop = threading.Event()

    async def run(self) -> None:
        """Until told to stop. Raises what made it impossible to go on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        parts.make_directories(self._config)
        ledger = open_ledger(self._config)
        try:
            stream = open_stream(self._config, self._clock)
            try:
                await self._run(Around(config=self._config, clock=self._clock, ledger=ledger, stream=stream, boot=secrets.token_hex(6)))
            finally:
                stream.close()
        finally:
            ledger.close()

    async def _run(self, around: Around) -> None:
        services = Running(of_process(around))
        await services.start()
        try:
            await Lead(around, self._listen, self._stop).run()
        finally:
            await services.stop()
