"""Which doors the server has, and to whom they are open."""

import asyncio
import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from commands import dmb_
from dmb.app.cli import serve as command
from dmb.app.serve import guard
from dmb.app.serve.server import credentials, is_loopback, listening

OK = [{"type": "http.response.start", "status": 200, "headers": []}, {"type": "http.response.body", "body": b"fine"}]


def asked(path="/", headers=(), body=(b"",), hosts=("localhost",), method="GET"):
    """Status, headers and body of an answer; and what the application inside was sent."""
    inside, sent = [], []

    async def app(scope, receive, send):
        if scope["path"] == "/gradio_api/login_check":
            await send({"type": "http.response.start", "status": 200})
            return
        while (message := await receive())["type"] == "http.request":
            inside.append(message["body"])
            if not message["more_body"]:
                break
        else:
            inside.append(None)
        for message in OK:
            await send(dict(message))

    parts = [{"type": "http.request", "body": part, "more_body": k + 1 < len(body)} for k, part in enumerate(body)]

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(b"host", b"localhost:7860"), *headers],
    }
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(guard.Guard(app, set(hosts) if hosts else None, Path(folder))(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"], inside


@pytest.mark.parametrize(
    "path",
    ["/", "/config", "/theme.css", "/assets/Index-CsUO.js", "/gradio_api/queue/join", "/gradio_api/queue/data",
     "/gradio_api/heartbeat/abc123", "/gradio_api/call/draw", "/gradio_api/call/draw/0af3", "/gradio_api/upload",
     "/gradio_api/file=/tmp/x/samples.csv"],
)  # fmt: skip
def test_the_page_reaches_what_it_needs(path):
    status, headers, body, _ = asked(path)
    assert (status, body) == (200, b"fine")
    assert headers[b"content-security-policy"].startswith(b"default-src 'self'")


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/proxy=http://example.org/", "/gradio_api/vibe-edit/", "/gradio_api/process_recording", "/docs",
     "/openapi.json", "/monitoring", "/gradio_api/deep_link", "/gradio_api/runs", "/gradio_api/run-history/connect",
     "/assets/../../secret", "/gradio_api/file=../secret", "/static/%2e%2e/../x", "/gradio_api/dev/reload", "//"],
)  # fmt: skip
def test_nothing_else_of_gradio_is_there(path):
    status, _, _, inside = asked(path)
    assert (status, inside) == (404, [])


def test_a_page_of_somebody_else_cannot_call_by_a_name_of_its_own():
    assert asked(headers=[(b"host", b"evil.example:7860")])[0] == 403
    assert asked(headers=[(b"host", b"evil.example")], hosts=None)[0] == 200  # where others are let in, by a password
    assert asked(headers=[(b"host", b"[::1]:80")], hosts=["[::1]"])[0] == 200


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/cancel", "/gradio_api/queue/join", "/login", "/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_origin_is_refused_on_every_route(path, method):
    for origin in (
        b"http://evil.example",
        b"http://localhost:3000",
        b"http://localhost",
        b"null",
        b"",
        b"localhost:7860",
    ):
        status, _, body, inside = asked(path, [(b"origin", origin)], method=method)
        assert (status, inside) == (403, []), origin
    assert body == b"only the page itself may call this, got a request from 'localhost:7860'\n"
    for own in (b"http://localhost:7860", b"https://localhost:7860"):  # a proxy may add TLS
        assert asked(path, [(b"origin", own)], method=method)[0] == 200


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "x"])
def test_other_methods_are_refused(method):
    status, _, body, inside = asked("/gradio_api/upload", method=method)
    assert (status, body, inside) == (405, f"a request must be GET, HEAD or POST, got {method}\n".encode(), [])


def test_passwords_are_not_guessed_in_a_row(tmp_path, monkeypatch):
    now, sent = [1000.0], []
    monkeypatch.setattr(guard.time, "monotonic", lambda: now[0])

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 400, "headers": []})

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    door = guard.Guard(app, None, tmp_path)

    def tried(address, path="/login", method="POST"):
        scope = {"type": "http", "method": method, "path": path, "headers": [], "client": (address, 1234)}
        sent.clear()
        asyncio.run(door(scope, receive, send))
        return sent[0]["status"]

    assert [tried("10.0.0.1") for _ in range(12)] == [400] * 10 + [429] * 2
    assert sent[1]["body"] == b"too many logins: wait a minute\n"
    assert tried("10.0.0.1", "/login/") == 429
    assert tried("10.0.0.1", method="GET") == tried("10.0.0.2") == 400
    now[0] += 61
    assert [tried("10.0.0.1") for _ in range(11)] == [400] * 10 + [429]
    for number in range(1100):
        tried(f"10.1.{number // 250}.{number % 250}")
    assert len(door.logins) <= 1000


def test_a_web_socket_is_closed(tmp_path):
    sent = []

    async def nothing(*_):
        raise AssertionError("the application must not be asked")

    async def send(message):
        sent.append(message["type"])

    scope = {"type": "websocket", "path": "/gradio_api/queue/join", "headers": []}
    asyncio.run(guard.Guard(nothing, None, tmp_path)(scope, nothing, send))
    assert sent == ["websocket.close"]


def test_what_a_browser_says_of_other_sites_is_believed_but_a_link_may_lead_here():
    for site in (b"cross-site", b"same-site"):
        assert asked("/gradio_api/heartbeat/abc", [(b"sec-fetch-site", site)])[0] == 403
        assert asked("/", [(b"sec-fetch-site", site)], method="POST")[0] == 403
        assert asked("/", [(b"sec-fetch-site", site)])[0] == 200
    for site in (b"same-origin", b"none"):
        assert asked("/gradio_api/heartbeat/abc", [(b"sec-fetch-site", site)])[0] == 200


def test_large_requests_are_refused_with_a_length_and_cut_off_without():
    status, _, body, inside = asked(headers=[(b"content-length", b"10000000")])
    assert (status, body, inside) == (413, b"a request must have at most 8,192 KB\n", [])
    assert asked(headers=[(b"content-length", b"-1")])[0] == 413
    part, chunked = bytes(5 << 20), [(b"transfer-encoding", b"chunked")]
    assert asked(headers=chunked, body=[part, part])[3] == [part, None]
    assert asked(headers=chunked, body=[part, b"x"])[3] == [part, b"x"]
    assert asked(headers=[(b"content-length", b"3")], body=[b"abc", b"d"])[3] == [b"abc", None]


def test_bodies_under_way_are_limited_in_sum(tmp_path):
    refused, scope = [], {"type": "http", "method": "POST", "path": "/gradio_api/upload"}

    async def slow(scope, receive, send):
        if scope["path"] == "/gradio_api/login_check":
            await send({"type": "http.response.start", "status": 200})
            return
        await asyncio.sleep(0.1)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        refused.append(message.get("status") or message["body"])

    async def visitors():
        around = guard.Guard(slow, None, tmp_path)
        for headers in ([(b"content-length", b"8388608")], [(b"transfer-encoding", b"chunked")]):
            await asyncio.gather(*(around({**scope, "headers": headers}, receive, send) for _ in range(18)))

    asyncio.run(visitors())
    assert refused == [503, b"too much is being sent at once, more than 128 MB: try again in a moment\n"] * 4


def test_only_a_password_lets_others_in(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("DMB_AUTH", raising=False)
    assert credentials("me:a:b", "0.0.0.0") == ("me", "a:b")
    assert credentials(None, "127.0.0.1") is None
    for host in ("0.0.0.0", "192.168.1.4", "example.org", "::", ""):
        assert not is_loopback(host)
    assert dmb_("serve", tmp_path, "--host", "0.0.0.0") == 2
    assert "--host 0.0.0.0 lets others in: give --auth USER:PASSWORD, or set DMB_AUTH" in capsys.readouterr().err
    for wrong in ("me", "me:", ":secret"):
        assert dmb_("serve", tmp_path, "--auth", wrong) == 2
        error = capsys.readouterr().err
        assert "--auth must read USER:PASSWORD" in error
        assert "secret" not in error


def test_a_port_that_is_taken_is_an_error_only_if_it_was_asked_for(monkeypatch, capsys, tmp_path):
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert dmb_("serve", tmp_path, "--port", port) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"dmb: port {port} of 127.0.0.1 can")
        assert error.count("\n") == 1
        monkeypatch.setattr("dmb.app.serve.server.FIRST_PORT", port)
        with listening("127.0.0.1", None) as other:
            assert port < other.getsockname()[1] < port + 100
    with pytest.raises(ValueError, match="--port must lie between 0 and 65535"):
        listening("127.0.0.1", 65536)
    with pytest.raises(ValueError, match="is no address of this machine"):
        listening("no.such.name.invalid", None)


def test_the_newest_run_that_has_a_model_is_opened(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dmb_("serve") == 2
    assert "there is no finished run in runs" in capsys.readouterr().err
    for age, (name, files) in enumerate({
        "new-but-unfinished": ["run.json"], "new": ["run.json", "model.safetensors"], "no-run": ["model.safetensors"],
        "old": ["run.json", "model.safetensors"],
    }.items()):  # fmt: skip
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        for file in files:
            (folder / file).touch()
            os.utime(folder / file, (1e9 - age, 1e9 - age))
    assert command.newest(tmp_path / "runs").name == "new"


def test_without_gradio_one_line_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert dmb_("serve", tmp_path, "--port", 0) == 2
    assert capsys.readouterr().err == (
        "dmb: dmb serve needs the extra `web`: pip install 'discrete-markov-bridge[web]'\n"
    )


def test_sockets_are_closed_after_an_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        assert dmb_("serve", tmp_path, "--port", port) == 2
    listening("127.0.0.1", port).close()
