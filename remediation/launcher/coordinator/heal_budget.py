"""What a job may do to itself: `--heal none | restart:N[/WINDOW] | in-place[:N[/WINDOW]]`, and how much of it is left."""

import re
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.durations import duration_text, seconds_of
from eagle_eye.errors import ConfigError

DEFAULT = "restart:3"
"""Of a script that does not call eagle_eye.elastic."""
FAILURES = 100
"""Of one kind that a job may heal in place within a window unless a number is given: each costs a fraction of a second."""
WINDOW_S = 3600.0
"""A failure counts for so long unless another window is given: who fails once a day is healed each time."""
KINDS = 3
"""All kinds of failures together may spend as much as so many kinds could: many causes do not restart a job for ever either."""
UNKNOWN = "unknown"
"""The kind of what an earlier coordinator has spent without telling on what."""

_RULE = re.compile(r"(?P<word>restart|in-place)(?::(?P<number>\d+)(?:/(?P<window>.+))?)?")


class HealRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is given with --heal."""

    heal: str
    """As given on the command line."""
    limit: int
    """Restarts, or transitions in place, for failures of one kind within the window."""
    window_s: float = WINDOW_S
    in_place: bool = False
    """Elastic workers go on without those that are lost; other workers are restarted."""
    chosen: bool = True
    """Somebody asked for it; else the job's workers decide by what they can."""

    @property
    def limit_of_all(self) -> int:
        """For failures of all kinds together within the window."""
        return KINDS * self.limit


def parse_heal(text: str) -> HealRule:
    """One of the forms above; empty: whatever suits the workers. Raises ConfigError.

    >>> parse_heal("restart:5/30m").window_s
    1800.0
    """
    if text == "none":
        return HealRule(heal=text, limit=0)
    found = _RULE.fullmatch(text or DEFAULT)
    window_s = seconds_of(found["window"]) if found and found["window"] else WINDOW_S
    if found is None or window_s is None or (found["word"] == "restart" and found["number"] is None):
        raise ConfigError(
            f"--heal {text!r} is not understood: use none, restart:N (e.g. restart:3) or in-place[:N]; N failures of one kind within an hour, "
            "or within the time after a slash (e.g. restart:3/30m)"
        )
    limit = int(found["number"]) if found["number"] is not None else FAILURES
    return HealRule(heal=text or DEFAULT, limit=limit, window_s=window_s, in_place=found["word"] == "in-place", chosen=bool(text))


class HealBudget:
    """How much of the rule is left. A launcher keeps it for the whole run of the job, whoever coordinates meanwhile."""

    def __init__(self, rule: HealRule, clock: Clock) -> None:
        self.rule = rule
        self._clock = clock
        self._spent: deque[tuple[float, str]] = deque()
        """(monotonic time, kind of failure), the oldest first."""

    @property
    def spent_by_kind(self) -> dict[str, int]:
        """Kind of failure → what was spent on it within the window."""
        since = self._clock.monotonic() - self.rule.window_s
        while self._spent and self._spent[0][0] <= since:
            self._spent.popleft()
        return dict(Counter(kind for _, kind in self._spent))

    @property
    def spent(self) -> int:
        """On all kinds of failures within the window."""
        return sum(self.spent_by_kind.values())

    @property
    def left(self) -> int:
        """What a failure of a kind that has not come yet may spend; 0: the job may not heal itself at all at present."""
        return max(0, min(self.rule.limit, self.rule.limit_of_all - self.spent))

    def refusal(self, kind: str) -> str:
        """Why the job may not heal itself of such a failure now; '' if it may."""
        rule, spent = self.rule, self.spent_by_kind
        within = f"within {duration_text(rule.window_s)}"
        if rule.limit == 0:
            return f"the job may not heal itself (--heal {rule.heal})"
        if spent.get(kind, 0) >= rule.limit:
            return f"the job may not heal itself again (--heal {rule.heal}): it has done so {spent[kind]} times {within} after: {kind}"
        if sum(spent.values()) >= rule.limit_of_all:
            kinds = ", ".join(f"{name} ({count})" for name, count in spent.items())
            return f"the job may not heal itself again (--heal {rule.heal}, {rule.limit_of_all} for all causes): {within} it has done so after: {kinds}"
        return ""

    def take(self, kind: str) -> bool:
        """Spend one; False if the job may not heal itself of such a failure now."""
        if self.refusal(kind):
            return False
        self._spent.append((self._clock.monotonic(), kind))
        return True

    def recharge(self, taken_for: str, kind: str) -> str:
        """What was spent last for one kind was spent for another. Why the job may not do so; '' if it may."""
        last = max((at for at, (_, known) in enumerate(self._spent) if known == taken_for), default=None)
        if last is None:
            return ""
        when, _ = self._spent[last]
        del self._spent[last]
        refusal = self.refusal(kind)
        self._spent.insert(last, (when, kind))
        return refusal

    def inherit(self, spent: int, by_kind: Mapping[str, int], age_s: float) -> None:
        """What another coordinator had spent by the time of its last layout, `age_s` ago, counts as spent then."""
        mine = Counter(self.spent_by_kind)
        theirs = Counter(by_kind) + Counter({UNKNOWN: spent - sum(by_kind.values())})
        then = self._clock.monotonic() - max(0.0, age_s)
        more = [(then, kind) for kind in (theirs - mine).elements()]
        self._spent = deque(sorted([*self._spent, *more]))

    def suit_elastic_workers(self) -> None:
        """The workers can heal in place: so they do, unless somebody chose otherwise."""
        if not self.rule.chosen and not self.rule.in_place:
            self.rule = msgspec.structs.replace(self.rule, heal="in-place", limit=FAILURES, in_place=True)
