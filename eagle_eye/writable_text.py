"""Text that every encoder takes, and that steers no terminal.

Python reads a file name that is no UTF-8, and JSON's `\\ud800`, as lone surrogates: an exception that names such a file, a mount or a process
would end whoever writes it down.
"""

import unicodedata
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


def words_of(error: BaseException) -> str:
    """What an exception of foreign code says, with its type; its own `__str__` may fail, too.

    >>> words_of(ValueError("negative length")), words_of(TimeoutError())
    ('ValueError: negative length', 'TimeoutError')
    """
    try:
        text = writable(str(error))
    except Exception as failed:  # noqa: BLE001 -- the __str__ of a stranger's class
        text = f"its __str__ raised {type(failed).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def printable(text: str, keep: str = "") -> str:
    """With a space for each character that steers a terminal, or turns the direction of what follows. `keep`: those that may stay.

    Messages and log lines come from the training of whoever; who reads them decides by what they see.

    >>> printable("lost\\x1b[2J\\u202egnp.exe"), printable("two\\nlines", keep="\\n")
    ('lost [2J gnp.exe', 'two\\nlines')
    """
    return text if text.isprintable() else "".join(char if char.isprintable() or char in keep or unicodedata.category(char) == "Zs" else " " for char in text)
