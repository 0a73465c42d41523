"""Numbers, times and names as a person reads them. Pure: no clock, no Streamlit; `now` and the reader's zone are handed in."""

import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

NOTHING = "–"
"""Where there is no value."""
MINUS = "\u2212"
SPACE = "\u202f"
"""Narrow, and never the end of a line: between a number and its unit."""
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SPANS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
"""Of ASCII: what a backslash escapes in Markdown (CommonMark 2.4)."""
UUID_SHOWN = 8
"""Characters of a GPU's UUID: enough to find it on a node."""


# --- numbers ---------------------------------------------------------------------------------------------------------


def number(value: float | None, unit: str = "", *, digits: int = 3) -> str:
    """With `digits` significant ones, a prefix from a thousand on and the unit; a dash for None, NaN and infinity.

    >>> number(1234567, "tokens/s")
    '1.23\\u202fM\\u202ftokens/s'
    >>> number(0.04567, "s"), number(float("nan"), "s"), number(-3.0)
    ('0.0457\\u202fs', '–', '−3')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    sign, size = (MINUS if value < 0 else ""), abs(float(f"{value:.{digits}g}"))
    scale, prefix = next(((scale, prefix) for scale, prefix in PREFIXES if size >= scale), (1.0, ""))
    return SPACE.join(part for part in (sign + _plain(size / scale, digits), prefix, unit) if part)


def figure(value: float | None, unit: str = "", *, digits: int = 4) -> str:
    """As it was measured: no prefix, thousands apart.

    >>> figure(1095.04, "MHz"), figure(0.9), figure(None), figure(80_000.0)
    ('1,095\\u202fMHz', '0.9', '–', '80,000')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(float(f"{value:.{digits}g}"))
    text = f"{size:,.0f}" if size >= 1000 else _plain(size, digits)
    return SPACE.join(part for part in ((MINUS if value < 0 else "") + text, unit) if part)


def percent(share: float | None) -> str:
    """A share of one.

    >>> percent(0.987), percent(1.0), percent(None)
    ('98.7\\u202f%', '100\\u202f%', '–')
    """
    return number(None if share is None else share * 100, "%")


def gpu_hours(value: float | None, unit: str = "GPU-hours") -> str:
    """A bill; small ones with three decimals, so that they stand below each other.

    >>> gpu_hours(12.345), gpu_hours(0.08), gpu_hours(0.0004), gpu_hours(0.0, "GPU-h")
    ('12.3\\u202fGPU-hours', '0.080\\u202fGPU-hours', '< 0.001\\u202fGPU-hours', '0\\u202fGPU-h')
    """
    if value is not None and 0 < value < 0.001:
        return f"< 0.001{SPACE}{unit}"
    if value is not None and 0 < value < 10:
        return f"{value:.3f}{SPACE}{unit}"
    return number(value, unit)


def count(many: int, what: str, whats: str = "") -> str:
    """A number of things.

    >>> count(1, "incident"), count(2, "incident"), count(0, "switch", "switches"), count(10_000, "node")
    ('1 incident', '2 incidents', 'no switches', '10,000 nodes')
    """
    return f"{many:,} {what}" if many == 1 else f"{many or 'no':{',' if many else ''}} {whats or what + 's'}"


def _plain(size: float, digits: int) -> str:
    if size == 0:
        return "0"
    before = math.floor(math.log10(size)) + 1
    text = f"{size:.{max(digits - before, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# --- times -----------------------------------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """The two largest units that say something; below a minute three digits, below a second milliseconds.

    >>> duration(0.0123), duration(1.26), duration(200), duration(7500), duration(180_000)
    ('12.3\\u202fms', '1.26\\u202fs', '3\\u202fmin 20\\u202fs', '2\\u202fh 5\\u202fmin', '2\\u202fd 2\\u202fh')
    """
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    sign, size = (MINUS if seconds < 0 else ""), abs(seconds)
    if size == 0:
        return f"0{SPACE}s"
    if size < 1:
        return sign + number(size * 1000, "ms")
    if round(size, 1) < 60:
        return sign + number(size, "s")
    return sign + " ".join(_spans(round(size)))


def _spans(whole: int) -> list[str]:
    parts: list[str] = []
    for span, unit in SPANS:
        many, whole = divmod(whole, span)
        if many or parts:
            parts.append(f"{many}{SPACE}{unit}" if many else "")
        if len(parts) == 2:
            break
    return [part for part in parts if part]


def after(seconds: float) -> str:
    """A time as its distance from the fault.

    >>> after(1.5), after(-0.25), after(0.0)
    ('+1.5\\u202fs', '−250\\u202fms', '0\\u202fs')
    """
    return ("+" if seconds > 0 else "") + duration(seconds)


def relative(time: float | None, now: float) -> str:
    """How long ago, or how soon. Both in seconds since 1970.

    >>> relative(100.0, 340.0), relative(340.0, 100.0), relative(99.9, 100.0), relative(None, 0.0)
    ('4\\u202fmin ago', 'in 4\\u202fmin', 'just now', '–')
    """
    if time is None or not math.isfinite(time):
        return NOTHING
    distance = now - time
    if abs(distance) < 1:
        return "just now"
    rough = next(f"{int(abs(distance) // span)}{SPACE}{unit}" for span, unit in SPANS if abs(distance) >= span)
    return f"{rough} ago" if distance > 0 else f"in {rough}"


def zone(name: str | None) -> tzinfo:
    """The reader's, as the browser names it; UTC where it does not, or where nobody knows the name."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def clock_time(time: float | None, where: tzinfo, *, milliseconds: bool = False) -> str:
    """Hours, minutes, seconds in the reader's zone.

    >>> clock_time(0.0, UTC), clock_time(0.25, UTC, milliseconds=True)
    ('00:00:00', '00:00:00.250')
    """
    moment = _moment(time, where)
    if moment is None:
        return NOTHING
    return moment.strftime("%H:%M:%S") + (f".{moment.microsecond // 1000:03d}" if milliseconds else "")


def date_time(time: float | None, where: tzinfo, now: float) -> str:
    """Day and time in the reader's zone; today's without its day, this year's without its year.

    >>> date_time(0.0, UTC, 60.0), date_time(0.0, UTC, 90_000.0), date_time(0.0, UTC, 1.7e9)
    ('00:00:00', '1 Jan 00:00:00', '1 Jan 1970 00:00:00')
    """
    moment, today = _moment(time, where), datetime.fromtimestamp(now, where)
    if moment is None:
        return NOTHING
    day = f"{moment.day} {moment:%b} " if moment.date() != today.date() else ""
    return day + (f"{moment.year} " if moment.year != today.year else "") + clock_time(time, where)


def _moment(time: float | None, where: tzinfo) -> datetime | None:
    """None for what no calendar has."""
    if time is None or not math.isfinite(time):
        return None
    try:
        return datetime.fromtimestamp(time, where)
    except (ValueError, OverflowError, OSError):
        return None


def zone_name(where: tzinfo, now: float) -> str:
    """What the reader calls the zone at this time of the year.

    >>> zone_name(UTC, 0.0)
    'UTC'
    """
    return datetime.fromtimestamp(now, where).tzname() or "UTC"


# --- names -----------------------------------------------------------------------------------------------------------


def entity(kind: str, name: str) -> str:
    """A thing as one would say it on the telephone.

    >>> entity("worker", "run-1/node-a/3"), entity("gpu", "GPU-1f9c2d7e-0000-0000-0000-000000000000"), entity("node", "node-a")
    ('worker 3 on node-a', 'GPU 1f9c2d7e', 'node node-a')
    """
    if kind == "worker" and name.count("/") == 2:
        _, node, slot = name.split("/")
        return f"worker {slot} on {node}"
    if kind == "gpu":
        return f"GPU {name.removeprefix('GPU-')[:UUID_SHOWN]}"
    return f"{kind} {name}"


def accused(culprits: Iterable[str]) -> Iterator[str]:
    """`worker run/node/0`, … as one says it; a node by its name alone.

    >>> list(accused(["worker run-1/node-a/3", "node node-b"]))
    ['worker 3 on node-a', 'node-b']
    """
    for culprit in culprits:
        kind, _, name = culprit.partition(" ")
        yield name if kind == "node" else entity(kind, name)


def listed(names: Iterable[str], *, most: int = 3, nothing: str = NOTHING) -> str:
    """Names with commas; the rest is counted.

    >>> listed(["a", "b"]), listed("abcdef"), listed([], nothing="none")
    ('a, b', 'a, b, c and 3 more', 'none')
    """
    each = list(names)
    more = f" and {len(each) - most:,} more" if len(each) > most else ""
    return ", ".join(each[:most]) + more if each else nothing


def spoken(name: str) -> str:
    """The name of an action, a metric or a guard in words.

    >>> spoken("evict_node"), spoken("step_s")
    ('evict node', 'step s')
    """
    return name.replace("_", " ")


def unmarked(text: str) -> str:
    """For a label that Streamlit draws as Markdown: a name in it becomes no link, image or formula.

    >>> print(unmarked("everything on ![x](https://y)"))
    everything on \\!\\[x\\]\\(https\\:\\/\\/y\\)
    """
    return PUNCTUATION.sub(r"\\\g<0>", text)


def capital(text: str) -> str:
    """With a capital letter at the beginning, the rest as it is.

    >>> capital("NaN in loss"), capital("node lost"), capital("")
    ('NaN in loss', 'Node lost', '')
    """
    return text[:1].upper() + text[1:]


def short(text: str, most: int) -> str:
    """At most so many characters, in one line.

    >>> short("a  b\\nc", 10), short("abcdefgh", 5)
    ('a b c', 'abcd…')
    """
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
