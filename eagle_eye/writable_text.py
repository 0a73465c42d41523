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
