"""Who should own which partition: evenly shared, and moved as little as possible. Pure."""

from collections.abc import Collection, Mapping


def assign_partitions(holders: Mapping[int, str | None], members: Collection[str]) -> dict[int, str]:
    """Partition → the member that should own it. Every member that sees the same holders comes to the same answer.

    holders: who has each partition now; None, or somebody who is no member, has no say. No member gets two more than
    another; who has the most keeps one more, where the number does not divide.
    """
    if not members:
        return {}
    held: dict[str, list[int]] = {member: [] for member in sorted(members)}
    for partition in sorted(holders):
        holder = holders[partition]
        if holder in held:
            held[holder].append(partition)
    least, more = divmod(len(holders), len(held))
    ranked = sorted(held, key=lambda member: (-len(held[member]), member))
    quota = {member: least + (place < more) for place, member in enumerate(ranked)}
    kept = {partition: member for member in ranked for partition in held[member][: quota[member]]}
    free = [partition for partition in sorted(holders) if partition not in kept]
    for member in sorted(held, key=lambda member: (len(held[member]), member)):
        missing = quota[member] - min(len(held[member]), quota[member])
        kept |= dict.fromkeys(free[:missing], member)
        del free[:missing]
    return kept
