"""`SessionStore`: torch's Store over the session. The launcher holds the keys, so they survive any worker that dies.

Imported only where a group is formed, because a subclass of torch's needs torch.
"""

import base64
from datetime import timedelta

from torch.distributed import Store

from eagle_eye.training import messages
from eagle_eye.training.elastic.epoch_protocol import EpochSession

_UNANSWERED = "the launcher's store gave no reason"


class SessionStore(Store):  # type: ignore[misc]  # torch has no types here
    """The keys of one epoch, over the session. Every wait ends with Fenced once a newer epoch is being formed.

    torch waits for a key and then gets it: what was waited for is kept until then. gloo's peers write `…/0`, `…/1`, …
    and read each other's one by one; with `siblings` (how many they are) a worker that has written one of them gets all in a
    single question.
    """

    def __init__(self, session: EpochSession, epoch: int, timeout_s: float, siblings: int = 0) -> None:
        super().__init__()
        self.seen: list[bytes] = []
        """Values that were written and read: they contain the addresses of the peers."""
        self._session = session
        self._epoch = epoch
        self._siblings = siblings
        self._timeout_s = timeout_s
        self._ours: set[str] = set()
        self._fetched: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ours.add(_stem(key))
        self.seen.append(data)
        self._ask("set", [key], [data])

    def get(self, key: str) -> bytes:
        if key not in self._fetched:
            self._fetch([key], self._timeout_s)
        return self._fetched.pop(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        return [self.get(key) for key in keys]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        missing = [key for key in keys if key not in self._fetched]
        if missing:
            self._fetch(self._with_siblings(missing), self._timeout_s if timeout is None else timeout.total_seconds())

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", [key], [str(value).encode()])[0])

    def check(self, keys: list[str]) -> bool:
        return bool(int(self._ask("check", keys)[0]))

    def delete_key(self, key: str) -> bool:
        self._fetched.pop(key, None)
        return bool(int(self._ask("delete", [key])[0]))

    def num_keys(self) -> int:
        return int(self._ask("count", [])[0])

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    deleteKey = delete_key  # noqa: N815 - what torch looks up when it calls from C++
    getNumKeys = num_keys  # noqa: N815

    def _with_siblings(self, keys: list[str]) -> list[str]:
        if len(keys) > 1 or _stem(keys[0]) not in self._ours or self._siblings == 0:
            return keys
        return [f"{_stem(keys[0])}{rank}" for rank in range(self._siblings)]

    def _fetch(self, keys: list[str], timeout_s: float) -> None:
        values = self._ask("get", keys, timeout_s=timeout_s)
        self.seen += values
        self._fetched.update(zip(keys, values, strict=True))

    def _ask(
        self, op: str, keys: list[str], values: list[bytes] | None = None, timeout_s: float | None = None
    ) -> list[bytes]:
        answer = self._session.ask_store(
            self._epoch,
            self._timeout_s if timeout_s is None else timeout_s,
            op=op,
            keys=[f"{self._epoch}/{key}" for key in keys] or [f"{self._epoch}/"],
            values=[base64.b64encode(value).decode() for value in values or []],
        )
        return _values(answer)


def _stem(key: str) -> str:
    """The key without the rank at its end; the key itself where there is none."""
    return key.rstrip("0123456789")


def _values(answer: messages.ProbeMessage) -> list[bytes]:
    if not answer.get("ok"):
        raise TimeoutError(str(answer.get("error") or _UNANSWERED))
    return [base64.b64decode(value) for value in answer.get("values", [])]
