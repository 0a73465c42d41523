"""The signature of a notification, after Stripe's scheme: a time and an HMAC over the time and the body.

    X-Eagle-Eye-Signature: t=1700000000,v1=<hex HMAC-SHA256 of "1700000000." + body>

The time keeps a notification that somebody overheard from being sent again later; within the tolerance a receiver knows it by
its number (`X-Eagle-Eye-Notification`, and `notification` in the body).
"""

import hashlib
import hmac

SIGNATURE = "X-Eagle-Eye-Signature"
NOTIFICATION = "X-Eagle-Eye-Notification"
TOLERANCE_S = 300.0


def signature(secret: bytes, time: int, body: bytes) -> str:
    """What a receiver recomputes and compares."""
    digest = hmac.new(secret, f"{time}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={time},v1={digest}"


def is_signed(secret: bytes, header: str, body: bytes, now: float, *, tolerance_s: float = TOLERANCE_S) -> bool:
    """A receiver's side: whether the body was signed with the secret, at most `tolerance_s` ago or ahead."""
    parts = dict(part.strip().partition("=")[::2] for part in header.split(","))
    said = parts.get("t", "")
    if not said.isdecimal() or abs(now - int(said)) > tolerance_s:
        return False
    return hmac.compare_digest(signature(secret, int(said), body).encode(), f"t={said},v1={parts.get('v1', '')}".encode())
