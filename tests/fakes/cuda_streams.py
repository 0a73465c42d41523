"""`torch.cuda` as far as copies on a side stream use it: what is done in which order is written down."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace


class FakeStream:
    """A queue of a GPU."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: "FakeStream") -> None:
        self._log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self._log.append(f"the host waits for {self.name}")


class FakeEvent:
    """A place in a queue."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def record(self, stream: FakeStream) -> None:
        self._log.append(f"{self.name} on {stream.name}")

    def synchronize(self) -> None:
        self._log.append(f"the host waits for {self.name}")


class FakeCuda:
    """The module."""

    def __init__(self, refuses_to_pin: bool = False) -> None:
        self.log: list[str] = []
        self.pinned: dict[int, int] = {}
        self._refuses = refuses_to_pin
        self._events = 0
        self._current = FakeStream("training", self.log)

    def Stream(self, device: object) -> FakeStream:  # noqa: N802 - torch's name
        return FakeStream(f"side of {device}", self.log)

    def Event(self, *, blocking: bool) -> FakeEvent:  # noqa: N802 - torch's name
        assert blocking, "a thread that spins takes a processor from the training"
        self._events += 1
        return FakeEvent(f"event {self._events}", self.log)

    def current_stream(self, device: object) -> FakeStream:
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield
        self.log.append("back")

    def cudart(self) -> SimpleNamespace:
        return SimpleNamespace(cudaHostRegister=self._register, cudaHostUnregister=self.pinned.pop)

    def _register(self, address: int, size: int, _flags: int) -> int:
        if self._refuses:
            return 2
        self.pinned[address] = size
        return 0
