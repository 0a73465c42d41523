"""Tells what a job is started with that its last run here was not (`job.changed`): once for each run, by its coordinator, a moment after the start.

It waits for nothing and holds up nothing: files are read in a thread of their own, which the launcher's end does not wait for.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from eagle_eye.changes import JOB_CHANGED, ValueDifference, change_attributes, difference_text, shown_value
from eagle_eye.clock import Clock
from eagle_eye.errors import UNREADABLE
from eagle_eye.training import atomic_file

from .event_log import EventLog
from .start_facts import StartFacts, changed_facts
from .vote_log import VoteLog

log = logging.getLogger(__name__)

VERSION = 1
MOST = 50
"""Differences of one start that are told each; further ones are counted."""
LOOK_S = 0.5


class _LastStart(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file."""

    facts: StartFacts
    version: int = VERSION


_Found = tuple[float, float, list[ValueDifference]]
"""Times of the last start and of this one, and what differs."""


class JobChanges:
    """Of one run. The facts of the last run that this node coordinated are kept in a file of the state directory."""

    def __init__(self, path: Path, node: str, votes: VoteLog, event_log: EventLog, facts: Callable[[], StartFacts], clock: Clock) -> None:
        """`facts`: may take long, or never return. `path`: of the file."""
        self._path, self._node, self._votes, self._event_log, self._facts, self._clock = path, node, votes, event_log, facts, clock
        self._begins = votes.record.last is None or votes.record.over
        """This launcher begins a run, or joins one at its start; it is not one that was started again in the middle."""

    async def tell(self) -> None:
        """Once the run has begun; ends where another launcher coordinates it."""
        while self._begins:
            record = self._votes.record
            if record.last is not None and not record.over:
                self._begins = False
                if record.last.coordinator == self._node:
                    await self._compare()
                return
            await asyncio.sleep(LOOK_S)

    async def _compare(self) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Found] = loop.create_future()

        def put(found: _Found) -> None:
            if not done.done():
                done.set_result(found)

        def look() -> None:
            found = self._found()
            with contextlib.suppress(RuntimeError):  # the launcher has ended meanwhile
                loop.call_soon_threadsafe(put, found)

        threading.Thread(target=look, name="job-changes", daemon=True).start()
        before, after, found = await done
        shown = [*found[:MOST], *([ValueDifference("differences beyond these", "0", str(len(found) - MOST))] if len(found) > MOST else [])]
        for each in shown:
            text = difference_text(each.what, shown_value(each.before), shown_value(each.after))
            attributes = change_attributes(each, known=min(before, after), seen=after)
            self._event_log.of_job(JOB_CHANGED, f"{text}, since its last run", attributes)

    def _found(self) -> _Found:
        """Whatever goes wrong: nothing is known, and nothing has changed."""
        now = self._clock.now()
        try:
            facts, last = self._facts(), self._load()
            self._save(facts)
            return (last.time, now, changed_facts(last, facts)) if last is not None else (now, now, [])
        except Exception:  # boundary: what a job is started with may be anything, and its training goes on
            log.exception("it is not known what this run is started with")
            return now, now, []

    def _load(self) -> StartFacts | None:
        try:
            last = msgspec.json.decode(self._path.read_bytes(), type=_LastStart)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            log.warning("%s is ignored, so that this run is compared with none before: %s", self._path, error)
            return None
        return last.facts if last.version == VERSION else None

    def _save(self, facts: StartFacts) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(self._path, msgspec.json.encode(_LastStart(facts=facts)), durable=False)
        except OSError as error:
            log.warning("what this run is started with cannot be saved in %s, so that the next one is compared with an older one: %s", self._path, error)
