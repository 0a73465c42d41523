"""Alertmanager's webhook (version 4) → events: which job, node or GPU of ours an alert is about.

https://prometheus.io/docs/alerting/latest/configuration/#webhook_config describes the body. Pure: no clock, no I/O.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from eagle_eye.config import HooksConfig
from eagle_eye.errors import WireError
from eagle_eye.types import Entity, Kind, Layout, digest_of
from eagle_eye.types.entity import LATEST

LONGEST_NAME = 400
TEXT_LIMIT = 500
"""Characters of a label or an annotation that are kept."""
OWN = "EagleEye"
"""Alerts whose name begins so are ours (deploy/prometheus/rules.yml): they must not come back as evidence."""
OWN_LABELS = ("eagle_eye_incident",)


Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""With its zone, as Alertmanager sends it; one without may not exist at all."""


class SiteAlert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert of the webhook's body."""

    status: Literal["firing", "resolved"]
    starts_at: Moment
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    fingerprint: str = ""
    ends_at: Moment | None = None

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "alert")

    @property
    def id(self) -> str:
        """The same for every time that this alert is sent, by whichever of Alertmanager's replicas."""
        return digest_of(self.fingerprint or sorted(self.labels.items()), self.starts_at.timestamp())

    @property
    def time(self) -> float:
        """When it changed, seconds since 1970; never what no record can hold."""
        ended = self.ends_at if self.status == "resolved" else None
        return min(max((ended or self.starts_at).timestamp(), 0.0), LATEST)

    @property
    def ours(self) -> bool:
        return self.name.startswith(OWN) or any(label in self.labels for label in OWN_LABELS)


class WebhookBody(msgspec.Struct, frozen=True, rename="camel"):
    """The body of the webhook; fields that we do not use are ignored."""

    version: str
    alerts: tuple[SiteAlert, ...]
    truncated_alerts: int = 0


_DECODER = msgspec.json.Decoder(WebhookBody, strict=False)


def read(body: bytes) -> WebhookBody:
    """Raises WireError naming what is wrong."""
    try:
        read = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise WireError(f"this is no webhook of Alertmanager: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"this is no JSON: {error}") from error
    if read.version != "4":
        raise WireError(f"version {read.version!r} of Alertmanager's webhook is not known here; this program reads '4'")
    return read


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """Where an alert belongs: a job's stream, and whom it is about."""

    job: str
    entity: Entity


class AlertTargets:
    """Where alerts belong, by the labels that the configuration names and the jobs that are known now."""

    def __init__(self, config: HooksConfig, layouts: Iterable[Layout]) -> None:
        self._config = config
        self._layouts = {layout.job: layout for layout in layouts}

    def of(self, alert: SiteAlert) -> Iterator[AlertTarget]:
        """One place for each job that the alert is about; an alert that names neither node nor job is about all jobs.

        None if it is about nothing that is known; a named node without a job is reported as idle.
        """
        labels = alert.labels
        job = _first(labels, self._config.job_labels)
        gpu = _first(labels, self._config.gpu_labels)
        node = self._node(_first(labels, self._config.node_labels))
        gpu_node = self._node_of_gpu(gpu)
        entity = _entity(gpu if gpu_node else "", node or gpu_node)
        jobs = [job] if job else self._jobs_on(node or gpu_node)
        for name in jobs:
            yield AlertTarget(name, entity or Entity(kind=Kind.JOB, name=name))

    def _node(self, name: str) -> str:
        """As our nodes are called: without a port, and by the first part of its name if only that is known."""
        host = name.rsplit(":", 1)[0] if name.rsplit(":", 1)[-1].isdecimal() else name
        known = {node for layout in self._layouts.values() for node in layout.nodes}
        short = host.partition(".")[0]
        return short if host not in known and short in known else host

    def _node_of_gpu(self, gpu: str) -> str:
        places = (place for layout in self._layouts.values() for place in layout.placements)
        return next((place.node for place in places if gpu and place.gpu == gpu), "")

    def _jobs_on(self, node: str) -> list[str]:
        if not node:
            return list(self._layouts)
        return [job for job, layout in self._layouts.items() if node in layout.nodes] or [f"idle/{node}"]


def attributes(alert: SiteAlert) -> dict[str, str]:
    """The attributes of an alert's event: bounded, and no labels but those that identify it."""
    attributes = {
        "alert": alert.name,
        "id": alert.id,
        "severity": alert.labels.get("severity", ""),
        "summary": alert.annotations.get("summary", "") or alert.annotations.get("description", ""),
    }
    return {name: text[:TEXT_LIMIT] for name, text in attributes.items()}


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """What is longer than any name of ours names nothing."""
    return next((labels[name] for name in names if 0 < len(labels.get(name, "")) <= LONGEST_NAME and "\0" not in labels[name]), "")


def _entity(gpu: str, node: str) -> Entity | None:
    if gpu:
        return Entity(kind=Kind.GPU, name=gpu)
    return Entity(kind=Kind.NODE, name=node) if node else None
