"""Text that every encoder takes.

Python reads a file name that is no UTF-8, and JSON's `\\ud800`, as lone surrogates: an exception that names such a file, a mount or a process
would end whoever writes it down.
"""

from typing import Any


def writable(value: Any) -> Any:
    """The same text, list, tuple or table with a question mark for each character that has no encoding; anything else as it is.

    >>> writable({"path": ["caf\\udce9.bin"], "errno": 2})
    {'path': ['caf?.bin'], 'errno': 2}
    """
    if type(value) is str:
        return value.encode(errors="replace").decode()
    if type(value) in (list, tuple):
        return type(value)(map(writable, value))
    if type(value) is dict:
        return {writable(name): writable(each) for name, each in value.items()}
    return value
