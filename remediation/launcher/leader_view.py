"""What the server's leader knows of the job: who coordinates it, and which of its nodes are there. Without a server nothing is known."""

import logging
from collections.abc import Iterable

from eagle_eye.errors import EagleEyeError
from eagle_eye.rpc.control_messages import number_in

from .control_network import Client

log = logging.getLogger(__name__)

ANSWER_S = 1.0
"""How long an answer is waited for."""


class LeaderView:
    """`client` is set once the session to the leader is begun; None: the job has no server."""

    def __init__(self, job: str, node: str) -> None:
        self._job = job
        self._node = node
        self.client: Client | None = None
        self.epoch = 0
        """The highest one that the leader has told of."""

    async def coordinator(self) -> str:
        """Address of the coordinator that the leader knows to be alive; '' if that is nobody, or we."""
        if self.client is None:
            return ""
        try:
            answer = await self.client.request("coordinator_of", {"job": self._job}, ANSWER_S)
        except EagleEyeError as error:
            log.info("the server did not say who coordinates the job, the launchers settle it: %s", error)
            return ""
        self.epoch = max(self.epoch, number_in(answer, "epoch"))
        return "" if answer.get("node") == self._node else str(answer.get("address", ""))

    async def present(self, node: str) -> bool | None:
        """Whether the leader has a session with anything of a node; None if it cannot be asked, or is too new to know."""
        if self.client is None or not self.client.connected:
            return None
        try:
            answer = await self.client.request("present", {"node": node}, ANSWER_S)
        except EagleEyeError as error:
            log.info("the server did not say whether %s is there: %s", node, error)
            return None
        return answer.get("present") is True if answer.get("known") is True and "present" in answer else None

    async def any_present(self, nodes: Iterable[str]) -> bool | None:
        """The same of any of these."""
        answers = [await self.present(node) for node in nodes]
        return None if None in answers else any(answers)
