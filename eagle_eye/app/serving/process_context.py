"""What the roles and services of one server process share: its stream, ledger, runners, and the leader's part."""

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detectors.runtime.runner import Runner
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.ledger import Ledger
from eagle_eye.metrics import Metrics
from eagle_eye.stream import Stream
from eagle_eye.stream.fetched_partition import FetchedPartition
from eagle_eye.stream.spool import SpooledWriter
from remediation.actions.notify import Notify
from remediation.engine.engine import Engine
from remediation.engine.intake import Intake
from remediation.engine.leader import Leader
from remediation.job_commands.action_commands import Commander

from .notice_writer import NoticeWriter

if TYPE_CHECKING:
    from .history_process import HistoryProcess, HistoryWriter


@dataclass(slots=True, kw_only=True)
class ProcessContext:
    """What a server process has in every role, and what it runs at this moment."""

    config: Config
    clock: Clock
    ledger: Ledger
    """For leases and notices. Its writes carry no term, so that no other leader fences them."""
    stream: Stream
    incarnation: str
    """Random id of this start of the process."""
    notices: NoticeWriter
    """To the ledger; `put` does not wait for it."""
    nudge: threading.Event = field(default_factory=threading.Event)
    """Set when this process has written something that a leader reads."""
    runners: dict[int, Runner] = field(default_factory=dict)
    """Partition → its runner, for those that this process owns now."""
    reads: dict[int, FetchedPartition] = field(default_factory=dict)
    """Partition → what its runner reads through, where fetchers may."""
    history_process: "HistoryProcess | None" = None
    """Writes the history of all partitions; None where threads of this process do, or none is written."""
    histories: "dict[int, HistoryWriter]" = field(default_factory=dict)
    """Partition → the service that writes its history."""
    leading: "LeaderContext | None" = None
    """None on a standby, and in the role `detect`."""
    metrics: Metrics | None = None
    """Updated by the runners of this process; None without an HTTP port."""


@dataclass(slots=True, kw_only=True)
class LeaderContext:
    """What a leader has during one term."""

    term: int
    ledger: Ledger
    """Its writes raise Stale once another server leads."""
    engine: Engine
    leader: Leader
    writer: SpooledWriter
    """Writes the leader's records to the stream."""
    commander: Commander
    """Sends commands to the coordinators of jobs."""
    notify: Notify | None
    """None where the action `notify` is switched off."""
    intake: Intake | None = None
    """What it reads of the stream; None before it has begun to."""
