"""Whether a port that took no connection still takes none. A TCP connection costs a fifth of a new channel of gRPC, and who looks for a server that is away does so each second."""

import asyncio

PORTS_KEPT = 64


class ClosedPorts:
    """What the last look at each address found; of one client."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}

    async def still_closed(self, address: str) -> bool:
        """True where the look before this one failed with the same error: a channel would fail as it did. False for what no TCP address is, or does not answer."""
        before, error = self._errors.pop(address, ""), await _error_of(address)
        if error and len(self._errors) < PORTS_KEPT:
            self._errors[address] = error
        return bool(error) and error == before


async def _error_of(address: str) -> str:
    """Why `address` takes no connection; '' if it does, or if that is not known."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        return ""
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:  # slow, or packets are dropped: gRPC waits longer
        return ""
    except (OSError, OverflowError) as error:
        return f"{type(error).__name__}: {error}"
    writer.close()
    return ""
