"""A site served over HTTP on the loopback, with a search box: what a browser would be given."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit

from overland.environments.site_world import page_text
from overland.environments.tool_world import Refused, ToolWorld
from overland.errors import OverlandError

MOST_RESULTS = 8
SECONDS = 10.0


class ServedSite(ToolWorld):
    """`pages` by name; the server lives while the world is open and answers this machine only."""

    tools = ("search", "visit")

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages = pages
        self._server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self.pages))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def search(self, query: str) -> str:
        """Search the site.

        Args:
            query: words that a page must hold
        """
        return page_text(self._get(f"/search?q={quote(query)}"))

    def visit(self, page: str) -> str:
        """Open a page.

        Args:
            page: its name, as a search shows it
        """
        name = page.strip().removeprefix("/").removesuffix(".html")
        if not re.fullmatch(r"[a-z-]{1,60}", name):
            raise Refused("404 not found")
        return page_text(self._get(f"/{name}.html"))

    def _get(self, path: str) -> str:
        assert self._server is not None, "the world is not open"
        connection = http.client.HTTPConnection("127.0.0.1", self._server.server_port, timeout=SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise OverlandError(f"the site does not answer: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise Refused(f"{answer.status} {answer.reason.lower()}")
        return body


def handler_for(pages: Mapping[str, str]) -> type[BaseHTTPRequestHandler]:
    """A request handler that knows these pages and nothing of the disk."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = respond(pages, self.path)
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: an episode's log is the episode."""

    return Handler


def respond(pages: Mapping[str, str], path: str) -> tuple[int, str]:
    """Status and HTML for a request's path."""
    parts = urlsplit(path)
    if parts.path == "/search":
        query = " ".join(parse_qs(parts.query).get("q", [])).casefold()
        words = re.findall(r"\w+", query)
        found = [
            name
            for name, html in pages.items()
            if words and all(re.search(rf"\b{w}\b", html.casefold()) for w in words)
        ]
        items = "".join(f'<li><a href="/{n}.html">{n}</a> {_title(pages[n])}</li>' for n in found[:MOST_RESULTS])
        return 200, f"<html><body><h1>{len(found)} pages</h1><ul>{items}</ul></body></html>"
    name = parts.path.removeprefix("/").removesuffix(".html")
    return (200, pages[name]) if name in pages else (404, "<h1>not found</h1>")


def _title(html: str) -> str:
    found = re.search(r"<title>(.*?)</title>", html)
    return found[1] if found else ""
