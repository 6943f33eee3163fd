"""A real HTTP server on localhost whose files misbehave on request."""

import hashlib
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` (path -> bytes); `behave` says how: path -> a name below."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.behave: dict[str, str] = {}
        self.requests: list[tuple[str, str | None, int]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    def handle_error(self, *_: object) -> None:
        """Broken pipes are part of the game."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.lstrip("/")
        how = self.server.behave.get(path, "")
        wanted = self.headers.get("Range")
        content = self.server.files.get(path)
        if content is None:
            self._answer(path, wanted, 404)
            self.end_headers()
            return
        tag = '"' + hashlib.sha256(content).hexdigest() + '"'
        start = 0
        same = self.headers.get("If-Range") in (None, tag)
        if wanted and same and how != "no range":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self._answer(path, wanted, 416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
        self._answer(path, wanted, 206 if start else 200)
        if start:
            first = 0 if how == "wrong part" else start
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", tag)
        rest = content[start:]
        if how != "no length":
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if how == "disconnect":
            rest = rest[: max(1, len(content) // 3)]
        elif how == "dead":
            rest = b""
        elif how == "once":
            self.server.behave[path] = ""
            rest = rest[: len(rest) // 2]
        elif how == "hang":
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
            self.server.behave[path] = ""
            time.sleep(1.0)
            return
        elif how == "slow":
            for i in range(0, len(rest), len(rest) // 5):
                self.wfile.write(rest[i : i + len(rest) // 5])
                self.wfile.flush()
                time.sleep(0.05)
            return
        self.wfile.write(rest)

    def _answer(self, path: str, wanted: str | None, status: int) -> None:
        self.server.requests.append((path, wanted, status))
        self.send_response(status)


@contextmanager
def serve() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
