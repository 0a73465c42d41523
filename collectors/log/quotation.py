"""Whether a line prints an error or only speaks of it: a prompt, a sample of the data, a message about an error that was survived.

Programs print the words of errno and CUDA at the beginning of a line, behind an exception's type or `[Errno N]`, or at its end behind `: `.

>>> [is_quotation(line, line.index("No space"), len(line)) for line in ("cp: /a: No space left", "What does 'No space left' mean?", "we have No space left")]
[False, True, True]
"""

import re

_CLOSED = re.compile(r"""(?>[^"'`“‘]|"[^"]*"|(?<!\w)[bBrRfFuU]?'[^']*'|(?<=\w)'|`[^`]*`|“[^”]*”|‘[^’]*’)*+""")
"""Every quotation that begins ends; an apostrophe is none."""
_ERRNO = r"(?:\[Errno -?\d+\] )?\Z"
_BEHIND_TYPE = re.compile(r"(?<![\w.:])(?:[A-Za-z_][\w.:]*(?:Error|Exception)(?:\(\w+\))?|what\(\)): +" + _ERRNO)
_BEHIND_PREFIX = re.compile(
    r"""\A(?>\s+|\[[^\]"']*\]:?|<[^>"']*>|[\d:.,/TZ+|>*\#=-]+(?!\w)|(?:ERROR|CRITICAL|FATAL|Error|Fatal|error|fatal)\b:?|[EF]\d{4}\b|\d+\b|[\w.-]+:\d+\b[:\]]?)*+""" + _ERRNO
)
"""Times, ranks, levels, source lines: what loggers put before a message."""
_BEHIND_COLON = re.compile(r"(?::\s*(?:\d+:?\s+)?|\s[-|>]\s|=\s?|(?:\d|\bE[A-Z]{3,}) \(|errno: \d+ - )" + _ERRNO)
_LAST = re.compile(
    r"""\A(?:\s*\[(?:[Ee]rrno:? )?-?\d+\]|\s*\((?:os error |[Ee]rrno:? )?-?\d+\)|\s*\(core dumped\).*|\))*(?:: b?['"</].*|: (?:address not mapped|invalid permissions).*|\. Tried to .*|[.!]*)\s*\Z"""
)
"""Behind the words: a number, a file, or nothing."""
_MESSAGE = re.compile(r"""\A[^?"]*\Z""")
_INFORMS = re.compile(r"\b(?:INFO|DEBUG|TRACE)\b")
_SURVIVED = re.compile(r"\b(?:retrying|will retry|retry \d|trying again|ignor(?:ed|ing)|fall(?:s|ing)? back|instead|skipp(?:ed|ing))\b")


def is_quotation(line: str, start: int, end: int) -> bool:
    """Whether the words of an error from `start` to `end` are not the line's own error."""
    before, after = line[:start], line[end:]
    if not _CLOSED.fullmatch(before) or _SURVIVED.search(after):
        return True
    if _BEHIND_TYPE.search(before) or _BEHIND_PREFIX.match(before):
        return False
    if not _BEHIND_COLON.search(before) or _INFORMS.search(before):
        return True
    message_follows = line[:end].endswith((": ", "_"))
    return not (_MESSAGE if message_follows else _LAST).match(after)
