"""At a launcher's start: whether another job's eviction keeps this node out. The job that evicted it knows so itself, by its layout."""

import logging
import time

import msgspec

from eagle_eye.errors import EagleEyeError, LaunchError

from .control_network import Client
from .launcher_settings import LauncherSettings

log = logging.getLogger(__name__)


class CordonAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's answer to `cordon_of`; empty: the node is free."""

    job: str = ""
    """From which it was evicted."""
    reason: str = ""
    since: float = 0.0


async def check_cordon(leader: Client | None, settings: LauncherSettings) -> None:
    """Raises LaunchError on a cordoned node. Without a server, or without an answer of it, the job starts as if there were none."""
    if leader is None or not settings.cordon_answer_s:
        return
    try:
        body = await leader.request("cordon_of", {"node": settings.node, "job": settings.job}, settings.cordon_answer_s)
        cordon = msgspec.convert(body, CordonAnswer)
    except (EagleEyeError, msgspec.ValidationError) as error:
        log.warning("the server could not be asked whether %s is cordoned: %s", settings.node, error)
        return
    if not cordon.since:
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(cordon.since))
    why = f"{settings.node} is cordoned since {when}: it was evicted from {cordon.job} ({cordon.reason or 'no reason given'})"
    if settings.ignore_cordon:
        log.warning("%s; workers of %s are started here all the same (--ignore-cordon)", why, settings.job)
        return
    raise LaunchError(
        f"{why}. No worker of {settings.job} is started here. After its repair: eagle-eye release {settings.node}; "
        "to start here all the same: --ignore-cordon"
    )
