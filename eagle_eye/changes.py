"""Changes of a node's software and configuration, and of what a job is started with: what they are, and how events tell them (`node.changed`, `job.changed`).

A change is a fact for people who look for a cause. Nothing is judged by it.
"""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

import msgspec

from .event_attributes import float_attribute
from .redaction import redact
from .types import Entity, Event, Kind, digest_of

NODE_CHANGED, JOB_CHANGED = "node.changed", "job.changed"
KEPT_S = 7 * 86_400.0
"""For so long a change is told to jobs, and shown with the incidents that follow."""
CLOCKS_S = 60.0
"""The clocks of two nodes may differ by so much."""
LONGEST = 200
"""Characters of a value."""
LONGEST_NAME = 100
LONGEST_ENTITY = 400
"""As of `types.entity.Name`."""


class ValueDifference(msgspec.Struct, frozen=True):
    """One thing that is not what it was. '' stands for: not there."""

    what: str
    before: str
    after: str


class ObservedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One difference of a node, or of a job (tenant/name) between two runs. Times are seconds since 1970, by the node's clock."""

    entity: Entity
    job: str
    """tenant/name/run: of a job, the run that began with it; of a node, a job that was told."""
    what: str
    before: str
    after: str
    known: float
    """When it was still seen as before."""
    seen: float
    """When it was first seen as after."""

    @property
    def id(self) -> str:
        """The same for each job that is told of a node's change."""
        run = self.job if self.entity.kind is Kind.JOB else ""
        return digest_of(self.entity, run, self.what, self.before, self.after, round(self.seen))


def differences(before: Mapping[str, str], after: Mapping[str, str], *, absent: bool = False) -> list[ValueDifference]:
    """By name. `absent`: a name that only one side has differs, too; else it was not read there, and says nothing.

    >>> differences({"kernel": "6.1", "bios": "2"}, {"kernel": "6.8", "os": "Debian"})
    [ValueDifference(what='kernel', before='6.1', after='6.8')]
    """
    names = sorted(before.keys() | after.keys() if absent else before.keys() & after.keys())
    return [ValueDifference(name, before.get(name, ""), after.get(name, "")) for name in names if before.get(name, "") != after.get(name, "")]


def changed_words(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    """The words of a command that were taken out and that were put in, a value with the option that stands before it.

    >>> changed_words("train.py --lr 3 --seed 1".split(), "train.py --lr 6 --seed 1 --bf16".split())
    ('--lr 3', '--lr 6 --bf16')
    """
    out: list[str] = []
    into: list[str] = []
    for kind, first, last, begin, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            out += before[_with_option(before, first, last) : last]
            into += after[_with_option(after, begin, end) : end]
    return " ".join(out), " ".join(into)


def _with_option(words: Sequence[str], first: int, last: int) -> int:
    is_value = first < last and first > 0 and not words[first].startswith("-")
    return first - 1 if is_value and words[first - 1].startswith("-") else first


def change_attributes(difference: ValueDifference, *, known: float, seen: float) -> dict[str, str]:
    """Of an event, redacted."""
    return {
        "what": difference.what[:LONGEST_NAME], "before": shown_value(difference.before), "after": shown_value(difference.after),
        "known": f"{known:.0f}", "seen": f"{seen:.0f}",
    }  # fmt: skip


def shown_value(text: str) -> str:
    """Redacted, and cut where it is long."""
    text = redact(text).replace("\0", " ")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def difference_text(what: str, before: str, after: str) -> str:
    """
    >>> difference_text("kernel", "6.1", "6.8"), difference_text("package torch", "", "2.9")
    ('kernel 6.1 → 6.8', 'package torch none → 2.9')
    """
    return f"{what} {before or 'none'} → {after or 'none'}"


def change_told(event: Event) -> ObservedChange | None:
    """The change in an event. None where it is not the node's own agent or a launcher of the job itself that speaks, or where it cannot be true."""
    entity, told = event.entity, event.attributes
    of_node = event.name == NODE_CHANGED and entity.kind is Kind.NODE and entity.name == event.node
    of_job = event.name == JOB_CHANGED and entity.kind is Kind.JOB and entity.name == event.job and event.job.count("/") == 2
    what, before, after = (told.get(name, "") for name in ("what", "before", "after"))
    known, seen = float_attribute(event, "known"), float_attribute(event, "seen")
    timely = event.time - 2 * KEPT_S <= seen <= event.time + CLOCKS_S and 0.0 <= known <= seen
    fits = 0 < len(what) <= LONGEST_NAME and max(len(before), len(after)) <= LONGEST and len(entity.name) <= LONGEST_ENTITY and "\0" not in what + before + after + entity.name
    if not (of_node or of_job) or not timely or not fits or before == after:
        return None
    of = Entity(kind=Kind.JOB, name=event.job.rpartition("/")[0]) if of_job else entity
    return ObservedChange(entity=of, job=event.job, what=what, before=before, after=after, known=known, seen=seen)
