"""A commander of one real job: what a driver orders goes to the job's coordinator."""

from typing import Any

from eagle_eye.types import Plan
from fakes.launchers import FakeLeader


class LeaderCommands:
    """Sends through the leader of the test."""

    def __init__(self, leader: FakeLeader) -> None:
        self._leader = leader

    def command(self, job: str, action: str, arguments: dict[str, Any], *, plan: Plan, step: str, epoch: int, timeout: float) -> dict[str, Any]:
        return self._leader.command(action, arguments, epoch=epoch, step=step)
