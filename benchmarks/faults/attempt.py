"""What an attempt is: somebody tries what is not theirs, and is refused and told, or not."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What became of one attempt."""

    refused: bool
    """Nothing of what was tried has happened."""
    told: str
    """What a person can read of it: in a notice, a log or the answer itself. Empty: nothing."""


class Kind(NamedTuple):
    """Attempts on the same parts."""

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Any]]
    """Starts the real parts in a folder, and ends them."""
    attempts: Mapping[str, Callable[[Any], Awaitable[Answer]]]
    """As docs/access.md calls it → carry it out on these parts."""


def line_with(text: str, words: str) -> str:
    """The first line that holds these words; '' if none does."""
    return next((line.strip() for line in text.splitlines() if words in line), "")
