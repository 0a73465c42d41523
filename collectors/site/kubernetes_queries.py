"""This node and the pods on it, asked of the API server of Kubernetes with the token of the agent's service account. It only reads, from the server's cache.

Without a token (outside a pod, or where none is mounted) nobody is asked.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from eagle_eye.clock import Clock
from eagle_eye.regular_file import read_owned

from .exporter_client import ExporterAddress, PageError, StatusError, fetch_page
from .kubernetes_records import KubernetesNode, KubernetesPod, node_in, pods_in
from .source_health import SourceHealth

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts the token of a pod's service account and the authority of its API server."""
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
"""Set in every pod."""
LARGEST_TOKEN = 64 << 10
CACHED = "resourceVersion=0"
"""As the kubelets ask: the API server answers from its memory, without a question to etcd."""
REMEDIES = {
    401: "its token is not accepted: mount a token of a service account of this cluster",
    403: "let its service account get nodes and list pods (deploy/kubernetes/eagle-eye-agent.yaml has the ClusterRole)",
    404: "the cluster has no node of the agent's name: start it with --node and the node's name",
}
_Record = TypeVar("_Record")


class KubernetesQueries:
    """Asks, and keeps the newest answers."""

    def __init__(self, folder: Path, node: str, every_s: float, answer_s: float, clock: Clock, environment: Mapping[str, str] = os.environ) -> None:
        """`folder`: of the service account. `every_s`: seconds between two questions. `answer_s`: within which each has to be answered."""
        self.node: KubernetesNode | None = None
        """None: not known."""
        self.pods: tuple[KubernetesPod, ...] = ()
        self.health = SourceHealth()
        self.changed_health: bool = False
        """The last look found that it fails, or works again, and that is to be told."""
        self._folder, self._name, self._every_s, self._answer_s, self._clock, self._environment = folder, node, every_s, answer_s, clock, environment
        self._next = 0.0

    @property
    def present(self) -> bool:
        """The agent runs in a pod, and its service account has a token there."""
        return bool(self._environment.get(HOST)) and (self._folder / "token").exists()

    def look(self, with_pods: bool) -> None:
        """Ask if it is time to; waits for at most twice `answer_s`. `with_pods`: also for the pods of the node."""
        now = self._clock.monotonic()
        self.changed_health = False
        if now < self._next or not self.present or not self.health.is_due(now):
            return
        self._next = now + self._every_s
        try:
            self.node = self._get(f"/api/v1/nodes/{quote(self._name, safe='')}?{CACHED}", node_in)
            self.pods = self._get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(self._name, safe='')}&{CACHED}", pods_in) if with_pods else ()
        except PageError as error:
            self.changed_health = self.health.failed(str(error), self._clock.monotonic())
        else:
            self.changed_health = self.health.worked()

    def _get(self, path: str, read: Callable[[bytes], _Record]) -> _Record:
        """Raises PageError."""
        try:
            port = int(self._environment.get(PORT, "443"))
            address = ExporterAddress("", True, self._environment[HOST], port, path)
            token = read_owned(self._folder / "token", LARGEST_TOKEN)[0].decode("ascii").strip()
            tls = ssl.create_default_context(cafile=self._folder / "ca.crt")
            body = fetch_page(address, self._answer_s, self._clock, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"}, tls=tls)
            return read(body)
        except StatusError as error:
            remedy = REMEDIES.get(error.status)
            raise PageError(f"the API server: {error}{f'; {remedy}' if remedy else ''}") from None
        except (OSError, ValueError, RecursionError) as error:  # of files that are half replaced, and of an answer that is none
            raise PageError(f"the API server: {str(error)[:200]}") from None
        except PageError as error:
            raise PageError(f"the API server: {error}") from None
