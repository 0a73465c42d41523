"""One process of the server, from its first moment to its last."""

import asyncio
import logging
import secrets
import signal
import threading
from collections.abc import Coroutine

from eagle_eye.app import plugin_wiring
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config
from eagle_eye.ledger.factory import open_ledger
from eagle_eye.stream.factory import open_stream
from remediation.alerts.receiver import endpoints_of

from . import access_check
from .detect_role import Detect
from .lead_role import Lead
from .notice_writer import Notices
from .service_registry import Around, Running, of_process

log = logging.getLogger(__name__)

LEASE_FACTOR = 1.5
"""A lease in the ledger lasts so many session leases: its holder outlives a short pause of its machine, and the next one still comes in time."""
Role = Coroutine[None, None, None]


def serve(config: Config, listen: str = "") -> None:
    """Run in the role of the configuration until Ctrl-C or SIGTERM. Raises an EagleEyeError for what cannot be started."""
    plugin_wiring.log_to_stderr()
    plugin_wiring.check(config, "the configuration")
    clock, address = SystemClock(), listen or config.server.listen
    if config.server.role != "detect":
        access_check.check(config, address, clock)
        endpoints_of(plugin_wiring.receivers(config))  # of alerts: a standby should not find out when it has to lead
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
        plugin_wiring.make_directories(self._config)
        ledger = open_ledger(self._config)
        try:
            stream = open_stream(self._config, self._clock)
            try:
                notices = Notices(ledger, self._clock)
                around = Around(
                    config=self._config, clock=self._clock, ledger=ledger, stream=stream, boot=secrets.token_hex(6), notices=notices
                )  # fmt: skip
                await self._run(around)
            finally:
                stream.close()
        finally:
            ledger.close()

    async def _run(self, around: Around) -> None:
        services = Running([around.notices, *of_process(around)])
        await asyncio.to_thread(services.start)
        try:
            await self._together(self._roles(around))
        finally:
            await asyncio.to_thread(services.stop)

    def _roles(self, around: Around) -> list[Role]:
        lease_s, role = self._config.server.lease_s * LEASE_FACTOR, self._config.server.role
        roles: list[Role] = []
        if role != "detect":
            roles.append(Lead(around, self._listen, lease_s, self._stop).run())
        if role != "lead":
            roles.append(Detect(around, lease_s, self._stop).run())
        return roles

    async def _together(self, roles: list[Role]) -> None:
        """All end with the first that does. Raises what ended it."""
        ended = await asyncio.gather(*map(self._to_its_end, roles), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _to_its_end(self, role: Role) -> None:
        try:
            await role
        finally:
            self._stop.set()
