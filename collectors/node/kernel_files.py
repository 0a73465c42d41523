"""Small files of /proc and /sys, one value each. One that is absent, torn or unreadable is no reading, and no error."""

import errno
import logging
import os
from pathlib import Path

from eagle_eye.regular_file import read_kernel_file

log = logging.getLogger(__name__)

LARGEST = 1 << 64
"""No counter of the kernel is as large."""
EXPECTED = frozenset({errno.EINVAL, errno.ENOENT, errno.ENODEV})
"""What the kernel answers where there is no value now, such as the speed of an interface that is down, or the file is gone."""


class KernelFiles:
    """Reads them, and logs each that cannot be read once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def text(self, path: Path) -> str | None:
        """The content without spaces around it; None if it cannot be read."""
        try:
            return read_kernel_file(path).decode("utf-8", "replace").strip()
        except OSError as error:
            if error.errno not in EXPECTED and str(path) not in self._logged:
                self._logged.add(str(path))
                log.info("%s cannot be read: %s", path, error)
            return None

    def count(self, path: Path) -> int | None:
        """A number of zero or more; None if it cannot be read, or is none."""
        return count_of(self.text(path))


def count_of(text: str | None) -> int | None:
    """A text as a counter.

    >>> count_of("12"), count_of("-1"), count_of("1_0"), count_of(""), count_of(None)
    (12, None, None, None, None)
    """
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 20:
        return None
    number = int(text)
    return number if number < LARGEST else None


def names_in(folder: Path) -> list[str]:
    """What is in a folder, sorted; nothing if it cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  # names are all that is wanted
    except OSError:
        return []
