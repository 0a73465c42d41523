"""Our severities in the words that pagers use, and times in theirs."""

from collections.abc import Mapping
from datetime import UTC, datetime

from eagle_eye.types import Severity

PAGER: Mapping[Severity, str] = {
    Severity.SEV1: "critical",
    Severity.SEV2: "error",
    Severity.SEV3: "warning",
    Severity.INFO: "info",
}
"""PagerDuty knows these four (PD-CEF); Alertmanager's labels are free, so they are the same there."""


def rfc3339(time: float) -> str:
    """Seconds since 1970 as RFC 3339, in UTC."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cut(text: str, longest: int) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
