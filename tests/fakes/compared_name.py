"""A name that counts how often it is compared: whether something is searched for each of many, without a clock."""


class ComparedName(str):
    """All of them count together."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        ComparedName.comparisons += 1
        return str.__eq__(self, other)
