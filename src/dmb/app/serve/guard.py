"""What stands between the network and the page: which routes exist, how much may be sent, what a browser may load."""

import contextlib
import re
import time
from collections import deque
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 8 << 20  # bytes of a request: a picture to upload, or a long template
LARGEST_LOGIN = 1 << 12  # the same of those who have no password yet
LOGINS = 10  # of one address per minute, whether right or wrong
# bytes of all requests that are being read; of all files that are stored; for which a file counts at least, so that
# small ones are limited in number
MOST_SENT, MOST_STORED, LEAST_FILE = 128 << 20, 128 << 20, 1 << 16

# all of gradio that the page needs. The rest, such as its proxy and its editors of code, is not there.
ROUTES = re.compile(
    r"/|/(config|theme\.css|login|favicon\.ico|robots\.txt)/?|/(assets|static|svelte)/[\w./@-]+"
    r"|/gradio_api/(info|config|theme\.css|app_id|user|token|login_check|startup-events|reset|cancel|upload"
    r"|upload_progress|component_server|queue/(join|data|status)|heartbeat/\w+|call/\w+(/\w+)?|file=(?!\w+://).+)/?"
)

HEADERS = [
    # scripts of the page are part of it, and templates of gradio are compiled in the browser; nothing comes from
    # elsewhere, and nothing is sent there
    (b"content-security-policy", b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; "
     b"frame-ancestors 'none'; base-uri 'self'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]  # fmt: skip

# all that there is before the login: the page that gradio shows then names the columns of a table
LOGIN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>dmb</title>
<form><label>User <input name="username"></label> <label>Password <input name="password" type="password"></label>
<button>Log in</button> <p></p></form>
<script>
const form = document.querySelector("form")
form.onsubmit = async event => {
  event.preventDefault()
  const answer = await fetch("login", {method: "POST", body: new URLSearchParams(new FormData(form))})
  if (answer.ok) location.reload()
  else document.querySelector("p").textContent =
    answer.status == 429 ? await answer.text() : "Wrong user or password."
}
</script></html>"""


class Guard:
    """An ASGI application around another one.

    Args:
        app: the one inside.
        hosts: names by which a browser may call it; None: any. Without this, a page of somebody else could let its own
            name point here, and read what is here.
        folder: where the files of visitors are stored; what is there already belongs to the page, and stays.
    """

    def __init__(self, app: ASGIApp, hosts: set[str] | None, folder: Path):
        self.app, self.hosts, self.folder = app, hosts, folder
        self.own, self.sent = set(folder.rglob("*")), 0
        self.logins = deque[tuple[float, str]](maxlen=100 * LOGINS)  # when, and from which address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # gradio needs no web sockets
            await send({"type": "websocket.close", "code": 1000})
            return
        headers, path, method, send = dict(scope["headers"]), scope["path"], scope["method"], _with_headers(send)
        host = headers.get(b"host", b"").decode("latin-1").rsplit(":", 1)[0].lower()
        is_login = path in ("/login", "/login/")
        largest = LARGEST_LOGIN if is_login else LARGEST_BODY
        length = headers.get(b"content-length", b"%d" % (largest if b"transfer-encoding" in headers else 0))
        caller = _other_site(headers, is_link=path == "/" and method in ("GET", "HEAD"))
        code, why = 200, ""
        if self.hosts is not None and host not in self.hosts:
            code, why = 403, f"Host must be one of {', '.join(sorted(self.hosts))}"
        elif caller is not None:
            code, why = 403, f"only the page itself may call this, got a request from {caller!r:.80}"
        elif method not in ("GET", "HEAD", "POST"):
            code, why = 405, f"a request must be GET, HEAD or POST, got {method:.40}"
        elif not ROUTES.fullmatch(path) or ".." in path:
            code, why = 404, "there is nothing here"
        elif not is_login and not await self._is_logged_in(scope):
            code, why = 401, LOGIN if path == "/" else "log in first"
        elif is_login and method == "POST" and self._too_many_logins(scope):
            code, why = 429, "too many logins: wait a minute"
        elif not length.isdigit() or int(length) > largest:
            code, why = 413, f"a request must have at most {largest >> 10:,} KB"
        elif self.sent + int(length) > MOST_SENT:
            code, why = 503, f"too much is being sent at once, more than {MOST_SENT >> 20} MB: try again in a moment"
        if code in (413, 503):
            # an answer to somebody who is still sending may be lost: the connection is closed with unread bytes, which
            # resets it. So the body is read, without keeping it, up to four times what is allowed
            rest = _counted(receive, 4 * LARGEST_BODY)
            while (await rest()).get("more_body"):
                pass
        if code != 200:
            kind = "text/html" if why == LOGIN else "text/plain"
            await Response(f"{why}\n", code, {"connection": "close"}, kind)(scope, receive, send)
            return
        self.sent += int(length)
        try:
            if method == "POST":
                self.make_room()
            await self.app(scope, _counted(receive, int(length)), send)
        finally:
            self.sent -= int(length)

    async def _is_logged_in(self, scope: Scope) -> bool:
        """Whether gradio lets a visitor in: it does not ask on all of its routes, so it is asked here, before any."""
        answers = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            answers.append(message.get("status"))

        asked = {"method": "GET", "path": "/gradio_api/login_check", "raw_path": b"/gradio_api/login_check"}
        await self.app({**scope, **asked, "query_string": b""}, receive, send)
        return answers[:1] == [200]

    def _too_many_logins(self, scope: Scope) -> bool:
        """Whether this address has tried too often; if not, this try counts, too."""
        now, address = time.monotonic(), (scope.get("client") or ("",))[0]
        if sum(other == address and now - then < 60 for then, other in self.logins) >= LOGINS:
            return True
        self.logins.append((now, address))
        return False

    def make_room(self) -> None:
        """Delete the oldest files of visitors, uploaded or made for download, until no more than the limit are left."""
        stored = 0
        with contextlib.suppress(FileNotFoundError):  # gradio deletes old files, too
            files = [(path.stat(), path) for path in self.folder.rglob("*") if path not in self.own and path.is_file()]
            for about, path in sorted(files, key=lambda file: -file[0].st_mtime_ns):
                stored += max(about.st_size, LEAST_FILE)
                if stored > MOST_STORED:
                    path.unlink()
                    with contextlib.suppress(OSError):  # not empty
                        path.parent.rmdir()


def _other_site(headers: dict[bytes, bytes], is_link: bool) -> str | None:
    """Which other page sent a request, as its browser says; None: this one, or a program that is no browser.

    A browser names the origin of a page that sends something or wants to read the answer. Of pictures and scripts of a
    page it says only whether they are from another site, as of links, which may lead here.
    """
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none")
    if origin is not None and origin.split(b"://")[1:] != [headers.get(b"host", b"")]:
        return origin.decode("latin-1")
    return None if is_link or site in (b"same-origin", b"none") else site.decode("latin-1")


def _counted(receive: Receive, length: int) -> Receive:
    """A body that becomes longer than was said, or than it may be if nothing was, is cut off."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > length else message

    return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *HEADERS]
        await send(message)

    return sent
