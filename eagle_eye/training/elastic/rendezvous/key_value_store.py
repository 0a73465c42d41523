"""`KeyValueStore`: the launcher's end of the rendezvous. It does no I/O; the caller gives it the time."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle_eye.training import messages

Reply = Callable[[bytes], None]
"""Sends one answer, a JSON line, to the worker that asked."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    asker: str
    number: int
    keys: list[str]
    returns_values: bool
    until: float
    reply: Reply


@dataclass(slots=True)
class KeyValueStore:
    """Answers `store` messages; those that wait for keys are answered when all of them are set, or after their time-out.

    set(keys[0], values[0]); get(keys) → values; wait(keys); add(keys[0], values[0], a decimal) → [sum];
    check(keys) → [1 if all are set, else 0]; delete(keys) → [how many were set]; count(keys[0], a prefix) → [how many keys
    begin with it]. Keys begin with the number of their epoch and a slash.
    """

    values: dict[str, bytes] = field(default_factory=dict)
    _waiting: list[_Waiting] = field(default_factory=list)

    def ask(self, question: Mapping[str, Any], reply: Reply, now: float) -> None:
        """Take a question at time `now` (seconds); `reply` is called once, here or from a later call."""
        op, number = question.get("op"), int(question["id"])
        keys = [str(key) for key in question.get("keys", [])]
        values = [base64.b64decode(value) for value in question.get("values", [])]
        if op in ("get", "wait"):
            until = now + float(question.get("timeout_s", 0.0))
            asker = str(question.get("worker", ""))
            self._waiting.append(_Waiting(asker, number, keys, op == "get", until, reply))
        elif op == "set":
            self.values[keys[0]] = values[0]
            reply(_answer(number))
        else:
            known = op in ("add", "check", "delete", "count")
            reply(
                _answer(number, [self._count(str(op), keys, values)])
                if known
                else _refusal(number, f"the store knows no {op!r}")
            )
        self._serve()

    def expire(self, now: float) -> None:
        """Refuse the questions whose time-out is over."""
        for each in [each for each in self._waiting if each.until <= now]:
            self._waiting.remove(each)
            missing = [key for key in each.keys if key not in self.values]
            each.reply(_refusal(each.number, f"no worker has set {', '.join(missing[:4])}"))

    def forget_asker(self, worker: str) -> None:
        """Drop the questions of a worker that is gone."""
        self._waiting = [each for each in self._waiting if each.asker != worker]

    def forget_before(self, epoch: int) -> None:
        """Drop the keys of the epochs below."""
        self.values = {key: value for key, value in self.values.items() if int(key.partition("/")[0]) >= epoch}

    def _count(self, op: str, keys: list[str], values: list[bytes]) -> bytes:
        if op == "add":
            number = int(self.values.get(keys[0], b"0")) + int(values[0])
            self.values[keys[0]] = b"%d" % number
        elif op == "check":
            number = all(key in self.values for key in keys)
        elif op == "delete":
            number = sum(self.values.pop(key, None) is not None for key in keys)
        else:
            number = sum(key.startswith(keys[0]) for key in self.values)
        return b"%d" % number

    def _serve(self) -> None:
        for each in [each for each in self._waiting if all(key in self.values for key in each.keys)]:
            self._waiting.remove(each)
            each.reply(_answer(each.number, [self.values[key] for key in each.keys] if each.returns_values else []))


def _answer(number: int, values: list[bytes] | None = None) -> bytes:
    return messages.encode(
        "stored", id=number, ok=True, values=[base64.b64encode(value).decode() for value in values or []]
    )


def _refusal(number: int, why: str) -> bytes:
    return messages.encode("stored", id=number, ok=False, error=why)
