"""Offset from which a reader starts: what its group has committed, or so many seconds before a record."""

from . import Stream


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
    newest = stream.read(topic, partition, max(begin, end - 1), 1)
    if not newest:
        return begin
    wanted = newest[0].time - seconds
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        found = stream.read(topic, partition, middle, 1)
        if found and found[0].time < wanted:
            low = middle + 1
        else:
            high = middle
    return low
