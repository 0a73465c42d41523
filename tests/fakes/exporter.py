"""An exporter on a loopback port: a page, or whatever a test sends in its place, byte by byte."""

import contextlib
import socket
import threading
from collections.abc import Callable

Answer = Callable[[socket.socket], None]


def http_page(body: str | bytes, status: str = "200 OK", headers: tuple[str, ...] = ("Content-Type: text/plain; version=0.0.4",)) -> bytes:
    """As exporters send it."""
    content = body.encode() if isinstance(body, str) else body
    head = "\r\n".join((f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(content)}", "", ""))
    return head.encode() + content


class FakeExporter:
    """Serves `answer` until it is closed: bytes, or a function that gets the connection once the request has been read."""

    def __init__(self, answer: bytes | Answer = b"") -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def shows(self, *lines: str) -> None:
        """The page from now on."""
        self.answer = http_page("".join(line + "\n" for line in lines))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    self._serve_one(connection)

    def _serve_one(self, connection: socket.socket) -> None:
        request = connection.recv(65_536)
        while request.startswith(b"GET") and b"\r\n\r\n" not in request and (data := connection.recv(65_536)):
            request += data
        self.requests.append(request)
        if callable(self.answer):
            self.answer(connection)
        else:
            connection.sendall(self.answer)
