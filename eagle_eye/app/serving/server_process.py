"""`eagle-eye server` as a process: checks its configuration, opens ledger and stream, and runs its roles."""

import asyncio
import logging
import secrets
import threading
from collections.abc import Coroutine

from eagle_eye.access import Authorization
from eagle_eye.access.addresses import refuse_open
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.credentials import Credentials
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import FOLLOWED_AT_ONCE_S, Clock, SteadyClock, SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.ledger.factory import open_ledger
from eagle_eye.ledger.timeline import CLOCK_JUMPED
from eagle_eye.open_file_limit import raise_open_file_limit, tell_no_room_seldom
from eagle_eye.stop_signals import stop_on_signals
from eagle_eye.stream.factory import open_stream
from eagle_eye.types import Notice
from remediation.alerts.receiver import endpoints_of

from .detect_role import DetectRole
from .lead_role import LeadRole
from .notice_writer import NoticeWriter
from .process_context import ProcessContext
from .service_registry import ServiceGroup, process_services

log = logging.getLogger(__name__)

LEASE_FACTOR = 1.5
"""Length of a lease in the ledger, in leases of control sessions: its holder survives a short pause of its machine, and a standby still takes over in time."""
RunningRole = Coroutine[None, None, None]


def serve(config: Config, listen: str = "") -> None:
    """Run in the role of the configuration until Ctrl-C or SIGTERM. Raises an EagleEyeError for what cannot be started."""
    plugin_wiring.log_to_stderr()
    raise_open_file_limit()
    plugin_wiring.check(config, "the configuration")
    clock, address = SystemClock(), listen or config.server.listen
    if config.server.role != "detect":
        check_access(config, address, clock)
        endpoints_of(plugin_wiring.receivers(config))  # of alerts: a standby must not find a mistake only when it has to lead
    asyncio.run(ServerProcess(config, address, clock).run())


def check_access(config: Config, listen: str, clock: Clock) -> None:
    """Refuse to start open to everybody, or with certificates and tokens that nobody can use. Raises ConfigError or ControlError."""
    credentials = Credentials.of(config.access, clock)
    refuse_open(listen, secured=credentials is not None, insecure=config.server.insecure)
    Authorization.of(config, listen, clock)
    identity = credentials.check().identity if credentials is not None else None
    if credentials is not None and identity is not None and identity.kind is CertificateKind.CLIENT:
        raise ConfigError(f"{credentials.certificate} is a certificate of a {identity}: a server needs one of `eagle-eye certs issue NAME --kind server`")


class ServerProcess:
    """Ledger, stream, the services that every role has, and the roles."""

    def __init__(self, config: Config, listen: str, clock: Clock) -> None:
        self._config = config
        self._listen = listen
        self._clock = SteadyClock(clock)
        self._stop = threading.Event()

    async def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP. Raises the error that ended a role."""
        tell_no_room_seldom(asyncio.get_running_loop())
        stop_on_signals(self._stop.set)
        plugin_wiring.make_directories(self._config)
        ledger = open_ledger(self._config)
        try:
            stream = open_stream(self._config, self._clock, checked=True)
            try:
                notices = NoticeWriter(ledger, self._clock)
                self._clock.on_jump = lambda seconds: notices.put(self._jumped(seconds))
                context = ProcessContext(
                    config=self._config, clock=self._clock, ledger=ledger, stream=stream, incarnation=secrets.token_hex(6), notices=notices
                )  # fmt: skip
                await self._run(context)
            finally:
                stream.close()
        finally:
            ledger.close()

    def _jumped(self, seconds: float) -> Notice:
        message = f"the clock of this server's machine was set {'forward' if seconds > 0 else 'back'} by {abs(seconds):.1f} s"
        log.warning("%s", message)
        name, what = (CLOCK_JUMPED, "unknown, and nothing is deleted because of it") if abs(seconds) > FOLLOWED_AT_ONCE_S else ("clock.slewed", "measured without it")
        return Notice(name=name, time=self._clock.now(), message=f"{message}: durations across it are {what}")

    async def _run(self, context: ProcessContext) -> None:
        services = ServiceGroup([context.notices, *process_services(context)])
        await asyncio.to_thread(services.start)
        try:
            await self._run_roles(self._roles(context))
        finally:
            await asyncio.to_thread(services.stop)

    def _roles(self, context: ProcessContext) -> list[RunningRole]:
        lease_s, role = self._config.server.lease_s * LEASE_FACTOR, self._config.server.role
        roles: list[RunningRole] = []
        if role != "detect":
            roles.append(LeadRole(context, self._listen, lease_s, self._stop).run())
        if role != "lead":
            roles.append(DetectRole(context, lease_s, self._stop).run())
        return roles

    async def _run_roles(self, roles: list[RunningRole]) -> None:
        """Run them side by side; when one ends, stop the others. Raises the first error."""
        ended = await asyncio.gather(*map(self._run_role, roles), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _run_role(self, role: RunningRole) -> None:
        try:
            await role
        finally:
            self._stop.set()
