"""Offset from which a reader starts: what its group has committed, or so many seconds before a record."""

from statistics import median

from . import Stream

NEWEST = 15
"""Records whose time is looked at: that of one alone may be wrong."""


def resume_at(stream: Stream, group: str, topic: str, partition: int) -> int:
    """What the group has committed; the oldest record if nothing, or if the stream has lost what it once held."""
    committed = stream.committed(group, topic, partition)
    begin = stream.begin(topic, partition)
    if committed is None or committed > stream.end(topic, partition):
        return begin
    return max(begin, committed)


def offset_before(stream: Stream, topic: str, partition: int, end: int, seconds: float) -> int:
    """Offset of the first record that is at most `seconds` older than the last one before `end`."""
    begin = stream.begin(topic, partition)
    newest = stream.read(topic, partition, max(begin, end - NEWEST), NEWEST)
    if not newest:
        return begin
    last, usual = newest[-1].time, median(message.time for message in newest)
    wanted = (last if abs(last - usual) <= seconds else usual) - seconds  # the last one's writer may have a clock that is years off
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        found = stream.read(topic, partition, middle, 1)
        if found and found[0].time < wanted:
            low = middle + 1
        else:
            high = middle
    return low
