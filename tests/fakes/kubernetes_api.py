"""The API server of Kubernetes over TLS on a loopback port: a node, its pods, or whatever a test sends in their place."""

import json
import socket
import ssl
from pathlib import Path
from typing import Any

from fakes.certificates import Authority
from fakes.exporter import Answer, FakeExporter, http_page

JSON = ("Content-Type: application/json",)
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}


class FakeKubernetesApi(FakeExporter):
    """Answers for the node n1 and the pods on it; `folder` becomes that of a service account."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        authority = Authority(folder)
        authority.path.rename(folder / "ca.crt")
        (folder / "token").write_text("the-token\n")
        self.folder = folder
        self.node: dict[str, Any] = {"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": [READY]}}
        self.pods: list[dict[str, Any]] = []
        self.instead: bytes | Answer | None = None
        """Sent for everything, if it is set."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*authority.certificate("127.0.0.1"))
        super().__init__(self._answer)

    @property
    def asked(self) -> list[str]:
        """Paths, in order."""
        return [request.split()[1].decode() for request in self.requests]

    def condition(self, name: str, status: str, **more: str) -> None:
        """Of the node, beside Ready."""
        self.node["status"]["conditions"].append({"type": name, "status": status, **more})

    def _serve_one(self, connection: socket.socket) -> None:
        with self._tls.wrap_socket(connection, server_side=True) as secured:
            super()._serve_one(secured)

    def _answer(self, connection: socket.socket) -> None:
        if callable(self.instead):
            self.instead(connection)
        else:
            connection.sendall(self.instead if self.instead is not None else self._page())

    def _page(self) -> bytes:
        head = self.requests[-1].decode()
        if "Authorization: Bearer the-token\r\n" not in head:
            return http_page("{}", "401 Unauthorized", JSON)
        path = self.asked[-1].partition("?")[0]
        if path == "/api/v1/nodes/n1":
            return http_page(json.dumps({"kind": "Node", "apiVersion": "v1", **self.node}), headers=JSON)
        found = json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": self.pods})
        return http_page(found, headers=JSON) if path == "/api/v1/pods" else http_page("{}", "404 Not Found", JSON)
