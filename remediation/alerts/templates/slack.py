"""A Slack incoming webhook: a message of blocks, with a plain text for notifications.

Limits after Slack's Block Kit reference: 50 blocks, header 150 characters of plain text, section text 3000, at most 10
fields of 2000. `&`, `<` and `>` are escaped in mrkdwn. https://docs.slack.dev/reference/block-kit/blocks
"""

from collections.abc import Sequence
from urllib.parse import quote

from remediation.alerts.alert import Alert
from remediation.alerts.alert_formatting import cut
from remediation.alerts.receiver import Endpoint

HEADER = 150
TEXT = 3000
FIELD = 2000
NAMES = 10
SIGNS = {"sev1": "🔴", "sev2": "🟠", "sev3": "🟡", "info": "🔵"}
WORDS = {"trigger": "", "update": "Update: ", "resolve": "Resolved: ", "test": "Test: "}


def body(alerts: Sequence[Alert], _endpoint: Endpoint, _now: float) -> object:
    """One message."""
    [alert] = alerts
    sign = "🟢" if alert.event_action == "resolve" else SIGNS[alert.severity]
    title = f"{sign} {WORDS[alert.event_action]}{alert.summary}"
    blocks: list[dict[str, object]] = [
        {"type": "header", "text": {"type": "plain_text", "text": cut(title, HEADER), "emoji": True}},
        {"type": "section", "fields": [_mrkdwn(f"*{name}*\n{_escaped(text, FIELD - 100)}", FIELD) for name, text in _fields(alert)]},
    ]
    if alert.news:
        blocks.append({"type": "section", "text": _mrkdwn(_escaped(alert.news, TEXT - 100), TEXT)})
    if alert.pending_plan is not None and alert.event_action != "resolve":
        blocks.append({"type": "section", "text": _mrkdwn(_request(alert), TEXT)})
    foot = [_link(alert.link, "incident")] if alert.link else []
    foot += [f"and {alert.more_pending} more alerts wait to be sent"] if alert.more_pending else []
    foot.append(_escaped(alert.id, 200))
    blocks.append({"type": "context", "elements": [_mrkdwn(" · ".join(foot), FIELD)]})
    return {"text": _escaped(title, TEXT), "blocks": blocks}


def _fields(alert: Alert) -> list[tuple[str, str]]:
    names = [culprit.name for culprit in alert.culprits[:NAMES]]
    names += [f"and {len(alert.culprits) - NAMES} more"] if len(alert.culprits) > NAMES else []
    return [
        ("Job", alert.job or "none"),
        ("State", alert.state),
        ("Severity", alert.severity),
        ("Culprits", ", ".join(names) or "unknown"),
    ]


def _request(alert: Alert) -> str:
    assert alert.pending_plan is not None
    asked = f"*Waits for approval:* {_escaped(alert.pending_plan.action, 100)} (`{_escaped(alert.pending_plan.plan, 100)}`)"
    if alert.pending_plan.reason:
        asked += f"\n{_escaped(alert.pending_plan.reason, 1000)}"
    return asked + (f"\n{_link(alert.approval_link, 'approve or refuse')}" if alert.approval_link else "")


def _link(url: str, text: str) -> str:
    return f"<{quote(url, safe=':/?#[]@!$&()*+,;=%~')}|{text}>"


def _escaped(text: str, longest: int) -> str:
    """Cut first, so that no entity is cut in two; what is escaped grows, so it is cut again where it grew too much."""
    short = cut(text, longest)
    while len(escaped := short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")) > longest:
        short = cut(short, len(short) * 3 // 4)
    return escaped


def _mrkdwn(text: str, longest: int) -> dict[str, object]:
    assert len(text) <= longest
    return {"type": "mrkdwn", "text": text}
