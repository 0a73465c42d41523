"""What PagerDuty, Slack and Alertmanager refuse, after their documentation: `refusals(kind, body)` says why.

PagerDuty: https://developer.pagerduty.com/docs/events-api-v2/trigger-events; Slack: https://docs.slack.dev/reference/block-kit;
Alertmanager: its api/v2/openapi.yaml.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
ENTITY = re.compile(r"&(?!amp;|lt;|gt;)")
LINK = re.compile(r"<https?://[^<>|\s]+\|[^<>|]+>")


def refusals(kind: str, body: bytes) -> list[str]:
    """Why a body would be answered with 400; empty: it is taken."""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ["no JSON"]
    return list({"pagerduty": _pagerduty, "slack": _slack, "alertmanager": _alertmanager}[kind](said))


# --- PagerDuty -----------------------------------------------------------------------------------------------------


def _pagerduty(event: Any) -> Iterator[str]:
    if not isinstance(event, dict):
        yield "no object"
        return
    if len(msgspec.json.encode(event)) > 512_000:
        yield "larger than 512 KB"
    if not _text(event.get("routing_key"), 32, 32):
        yield "Length of 'routing_key' is incorrect (should be 32 characters)"
    if event.get("event_action") not in ("trigger", "acknowledge", "resolve"):
        yield "'event_action' is missing or unknown"
    if "dedup_key" in event and not _text(event["dedup_key"], 1, 255):
        yield "'dedup_key' is no string of at most 255 characters"
    if event.get("event_action") == "trigger":
        yield from _payload(event.get("payload"))
    elif "dedup_key" not in event:
        yield "'dedup_key' is missing"
    for link in event.get("links", []):
        if not (isinstance(link, dict) and str(link.get("href", "")).startswith("http")):
            yield "a link without href"


def _payload(payload: Any) -> Iterator[str]:
    if not isinstance(payload, dict):
        yield "'payload' is missing"
        return
    if not _text(payload.get("summary"), 1, 1024):
        yield "'payload.summary' is missing, or longer than 1024"
    if not _text(payload.get("source"), 1, 10_000):
        yield "'payload.source' is missing or blank"
    if payload.get("severity") not in ("critical", "error", "warning", "info"):
        yield "'payload.severity' is invalid (must be one of the following: 'critical', 'warning', 'error' or 'info')"
    if "timestamp" in payload and not _is_time(payload["timestamp"]):
        yield "'payload.timestamp' is no ISO 8601"
    for name in ("component", "group", "class"):
        if name in payload and not isinstance(payload[name], str):
            yield f"'payload.{name}' is no string"
    if not isinstance(payload.get("custom_details", {}), dict):
        yield "'payload.custom_details' is no object"


# --- Slack ---------------------------------------------------------------------------------------------------------


def _slack(message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield "invalid_payload"
        return
    blocks = message.get("blocks", [])
    if not message.get("text") and not blocks:
        yield "no_text"
    if not _text(message.get("text", "x"), 1, 40_000):
        yield "msg_too_long"
    if not isinstance(blocks, list) or len(blocks) > 50:
        yield "invalid_blocks: not a list of at most 50"
        return
    for block in blocks:
        yield from (f"invalid_blocks: {problem}" for problem in _block(block))


def _block(block: Any) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "header":
        yield from _words(block.get("text"), 150, ("plain_text",))
    elif kind == "section":
        yield from _section(block)
    elif kind == "context":
        elements = block.get("elements", [])
        if not 1 <= len(elements) <= 10:
            yield "1 to 10 elements"
        for element in elements:
            yield from _words(element, 3000)
    elif kind != "divider":
        yield f"no block of type {kind!r}"


def _section(block: dict[str, Any]) -> Iterator[str]:
    fields = block.get("fields", [])
    if not fields and "text" not in block:
        yield "a section needs text or fields"
    if len(fields) > 10:
        yield "more than 10 fields"
    for field in fields:
        yield from _words(field, 2000)
    if "text" in block:
        yield from _words(block["text"], 3000)


def _words(text: Any, longest: int, kinds: tuple[str, ...] = ("plain_text", "mrkdwn")) -> Iterator[str]:
    if not isinstance(text, dict) or text.get("type") not in kinds or not _text(text.get("text"), 1, longest):
        yield f"text of {kinds} with 1 to {longest} characters is missing"
    elif text["type"] == "mrkdwn" and (ENTITY.search(text["text"]) or set("<>") & set(LINK.sub("", text["text"]))):
        yield f"unescaped: {text['text']}"


# --- Alertmanager --------------------------------------------------------------------------------------------------


def _alertmanager(alerts: Any) -> Iterator[str]:
    if not isinstance(alerts, list):
        yield "cannot unmarshal object"
        return
    for alert in alerts:
        labels, notes = alert.get("labels", {}), alert.get("annotations", {})
        if not labels:
            yield "at least one label pair required"
        for name, value in [*labels.items(), *notes.items()]:
            if not (LABEL.fullmatch(name) and isinstance(value, str)):
                yield f"invalid label {name!r}"
        times = [alert[name] for name in ("startsAt", "endsAt") if name in alert]
        if not all(map(_is_time, times)):
            yield "no RFC 3339"
        elif len(times) == 2 and datetime.fromisoformat(times[1]) < datetime.fromisoformat(times[0]):
            yield "start time must be before end time"
        if "generatorURL" in alert and not str(alert["generatorURL"]).startswith("http"):
            yield "generatorURL must be of type uri"


def _text(value: Any, shortest: int, longest: int) -> bool:
    return isinstance(value, str) and shortest <= len(value) <= longest


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False
