"""Takes secrets out of text before it leaves the node: a short list of what a secret looks like."""

import re
from pathlib import Path

HIDDEN = "[redacted]"

_NAMES = r"[\w-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w-]*"
"""Tried from the beginning of a word alone: from each character of a long one it would take seconds."""
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"(?i)\b(authorization\s*[:=]\s*)(?:\w+\s+)?\S+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.+/=~-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"([a-z][a-z0-9+.-]{0,31}://[^\s:/@]*):[^\s@/]+@"), rf"\1:{HIDDEN}@"),
    (re.compile(rf"(?i)(?<![\w-])(['\"]?{_NAMES}['\"]?\s*[:=]\s*)(?:'[^']*'|\"[^\"]*\"|[^\s,;'\"&]+)"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(?<!-)(--{_NAMES}\s+)\S+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:hf_|ghp_|gho_|ghs_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|ASIA|eyJ)[\w.-]{12,}"), HIDDEN),
)


def redact(text: str) -> str:
    """The text without what looks like a secret.

    >>> redact("login with --api-token abc, password='x y'")
    "login with --api-token [redacted], password=[redacted]"
    """
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def last_lines(path: Path, lines: int = 20, longest: int = 16_384, since: int = 0) -> str:
    """The end of a log from byte `since` on, redacted; empty if there is none. At most `longest` bytes are read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since, size - longest))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return redact("\n".join(text.splitlines()[-lines:]))
