"""The rendezvous store of elastic workers: with the coordinator's launcher, so that no worker that dies takes it along.

Workers ask it over their session; a launcher that follows hands their questions on. What an established group needs is in
the group: losing the store does not stop the training, it is only missed when the next group is formed, and then there is
a new coordinator with a store of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.rpc.control_messages import Body
from eagle_eye.training import messages
from eagle_eye.training.elastic.rendezvous.key_value_store import KeyValueStore

POLL_S = 1.0
"""How long one request to the coordinator waits for a key: then it is asked again."""
RETRY_S = 0.05


class RendezvousStore:
    """The coordinator's end."""

    def __init__(self, clock: Clock) -> None:
        self._keys = KeyValueStore()
        self._clock = clock
        self._asked = 0

    def begin(self, epoch: int) -> None:
        """Keys of older epochs are of no use any more."""
        self._keys.forget_before(epoch)

    async def answer(self, question: Body) -> Body:
        """The answer to `store`; a wait ends after POLL_S at the latest, and then says that it is to be asked again."""
        future: asyncio.Future[messages.ProbeMessage] = asyncio.get_running_loop().create_future()
        self._asked += 1
        asker = str(self._asked)

        def say(line: bytes) -> None:
            if not future.done():
                future.set_result(messages.decode(line))

        timeout_s = float(question.get("timeout_s", 0.0))
        self._keys.ask(question | {"worker": asker, "timeout_s": timeout_s}, say, self._clock.monotonic())
        if future.done():
            return _body(future.result())
        try:
            async with asyncio.timeout(min(timeout_s, POLL_S)):
                return _body(await future)
        except TimeoutError:
            return {"again": timeout_s > POLL_S, "ok": False, "error": _not_set(question)}
        finally:
            self._keys.forget_asker(asker)


AskStore = Callable[[Body], Awaitable[Body]]
"""Brings one question to the store, wherever it is."""


async def ask_patiently(question: messages.ProbeMessage, ask: AskStore, clock: Clock) -> bytes:
    """The line for the worker: asks again until there is an answer or its time is over, also when the coordinator changes meanwhile."""
    until = clock.monotonic() + float(question.get("timeout_s", 0.0))
    words: Body = {name: question.get(name) for name in ("id", "op", "keys", "values")}
    error = ""
    while True:
        left = until - clock.monotonic()
        try:
            answer = await ask(words | {"timeout_s": max(0.0, left), "within_s": question.get("timeout_s", 0.0)})
            if not answer.get("again"):
                return messages.encode("stored", id=question["id"], **answer)
        except EagleEyeError as reason:
            error = f"the coordinator's store cannot be reached: {reason}"
            await asyncio.sleep(RETRY_S)
        if left <= 0:
            return messages.encode("stored", id=question["id"], ok=False, error=error or _not_set(question))


def _body(message: messages.ProbeMessage) -> Body:
    return {name: message[name] for name in ("ok", "values", "error") if name in message}


def _not_set(question: messages.ProbeMessage) -> str:
    missing = ", ".join(repr(key) for key in question.get("keys", ()))
    return f"key {missing} was not set within {float(question.get('within_s') or question.get('timeout_s') or 0.0):g} s"
