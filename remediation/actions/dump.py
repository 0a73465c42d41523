"""Keep what a restart would destroy: the stacks of all workers and their flight recorders."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from eagle_eye.activity.py_spy_text import place_key
from eagle_eye.clock import Clock
from eagle_eye.ranges import Bytes, Count, Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import Commander, done, intended


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """Asks the coordinator for the stacks; the answer is kept as the detail of the step that is done."""

    commander: Commander
    clock: Clock
    timeout_s: Seconds = 6.0
    """Seconds to wait for the coordinator\'s answer, which waits up to 4 s for the stacks of each worker."""
    longest: Bytes = 64 * 1024
    """Characters kept of all stacks together, and of all flight recorders."""
    flight_recorder: bool = True
    """Also ask for the rings of collectives."""
    collectives: Count = 16
    """Newest collectives kept of each worker: where a job hangs, the last ones show it."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError, PermanentError or Stale."""
        for target in plan.targets:
            step = f"dump {target.job}"
            yield intended(step, ", ".join(target.workers) or "all workers", self.clock)
            answer = self.commander.command(
                target.job, "dump", {"workers": list(target.workers)},
                plan=plan, step=step, epoch=target.epoch, timeout=self.timeout_s,
            )
            yield done(step, self._kept(answer), self.clock)

    def _kept(self, answer: Mapping[str, Any]) -> str:
        """JSON: the stacks with the workers that stand there, rare ones first (the one that differs tells most). Of workers whose threads are all at
        the same places the first one's text is kept: the numbers of processes and threads alone differ."""
        texts: dict[Hashable, str] = {}
        stands: dict[Hashable, list[str]] = {}
        for worker, found in sorted(answer.items()):
            text = str((found or {}).get("stack") or "no stack")[: self.longest]
            key = place_key(text)
            texts.setdefault(key, text)
            stands.setdefault(key, []).append(worker)
        stacks: list[dict[str, Any]] = []
        left = self.longest
        for key, workers in sorted(stands.items(), key=lambda item: len(item[1])):
            stacks.append({"workers": workers, "stack": texts[key][:left]})
            left = max(0, left - len(texts[key]))
        kept: dict[str, Any] = {"stacks": stacks}
        if self.flight_recorder:
            kept["flight_recorders"] = self._recorders(answer)
        return msgspec.json.encode(kept).decode()

    def _recorders(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        left = self.longest
        for worker in sorted(answer):
            recorder = self._newest((answer[worker] or {}).get("flight_recorder"))
            size = len(msgspec.json.encode(recorder))
            if recorder is not None and size <= left:
                found[worker] = recorder
                left -= size
        return found

    def _newest(self, recorder: Any) -> Any:
        if not isinstance(recorder, dict) or not isinstance(recorder.get("entries"), list):
            return recorder
        return recorder | {"entries": recorder["entries"][-self.collectives :]}
