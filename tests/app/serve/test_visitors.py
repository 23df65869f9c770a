"""Visitors who are many, or mean no good: over HTTP, on this machine."""

import json
import os
import re
import signal
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from app.serve.conftest import address_of
from commands import dmb_

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

EVIL = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "${alert(1)}",
    "{{7*7}}",
    "'; rm -rf /",
    "$(touch x)",
]
DRAW = [3, 4, 1.0, "ancestral", 0]  # samples, calls, temperature, sampler, seed


@pytest.fixture(scope="module")
def text_page(playgrounds):
    with address_of(playgrounds["text"]) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def table_page(playgrounds):
    with address_of(playgrounds["table"]) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def call(client, name, *values):
    """What a call of the page's API ends with: `complete` or `error`, and the outputs or the message."""
    joined = client.post(f"/gradio_api/call/{name}", json={"data": list(values)})
    if joined.status_code != 200:
        return "refused", joined.text
    with client.stream("GET", f"/gradio_api/call/{name}/{joined.json()['event_id']}") as answer:
        event = ""
        for line in answer.iter_lines():
            kind, _, rest = line.partition(": ")
            if kind == "event":
                event = rest
            elif kind == "data" and event in ("complete", "error"):
                return event, json.loads(rest)
    return "lost", None


def message(client, *call_):
    """The message of a call that must fail."""
    event, found = call(client, *call_)
    assert event in ("error", "refused"), (call_, found)
    return (found["error"] or "") if isinstance(found, dict) else str(found)


def alive(client):
    event, [_, samples, *_] = call(client, "draw", *DRAW, "a_b")
    return event == "complete" and samples.count("filled") == 6 and client.get("/").status_code == 200


def test_a_call_draws_samples_and_another_bounds_what_was_typed(text_page):
    assert alive(text_page)
    event, [status] = call(text_page, "bound", *DRAW, "ab<>ab")
    assert event == "complete"
    assert "bits</b> at most for 6 tokens" in status
    assert "given the other 6 as the model filled them in" in status


def test_scripts_in_every_text_are_refused_or_come_back_as_text(text_page, table_page):
    for evil in EVIL:
        assert "<" not in message(text_page, "draw", *DRAW, evil)
        message(text_page, "draw", 3, 4, 1.0, evil, 0, "a_b")
        for place in range(3):
            values = ["", "", ""]
            values[place] = evil
            event, found = call(table_page, "draw", *DRAW, *values)
            told = found["error"] if event == "error" else found[1]
            assert "<script" not in told
            assert "<img" not in told
    assert alive(text_page)
    assert call(table_page, "draw", *DRAW, "", "", "")[0] == "complete"


def test_ten_megabytes_are_refused_and_so_is_what_is_too_long(text_page):
    assert text_page.post("/gradio_api/call/draw", json={"data": [*DRAW, "a" * 10**7]}).status_code == 413
    assert "at most 112 characters, got 5,000,000" in message(text_page, "draw", *DRAW, "a" * 5_000_000)
    assert "at most 12 positions" in message(text_page, "draw", *DRAW, "a" * 13)
    assert text_page.post("/gradio_api/upload", files={"files": b"x" * (5 << 20)}).status_code == 413
    assert alive(text_page)


@pytest.mark.parametrize("place", range(6))
def test_wrong_types_are_refused(text_page, place):
    for wrong in ([], {}, "x" * 50, -1, 1e300, True, {"path": "/etc/passwd"}, {"__type__": "update"}):
        if (place, wrong) in [(2, True), (5, "x" * 50)] or (place == 4 and wrong in (True, 1e300)):
            continue
        values = [*DRAW, "a_b"]
        values[place] = wrong
        found = message(text_page, "draw", *values)
        assert "Traceback" not in found
        assert "root:" not in found
    assert alive(text_page)


def test_bodies_that_are_no_calls_are_refused(text_page):
    for body in (b"", b"{", b"[]", b"null", b'{"data": 7}', b'{"data": [[[[[[[[[[]]]]]]]]]]}', b"\xff\xfe"):
        headers = {"content-type": "application/json"}
        answer = text_page.post("/gradio_api/call/draw", content=body, headers=headers)
        assert answer.status_code in (200, 400, 422, 500)
        if answer.status_code == 200:
            event_id = answer.json()["event_id"]
            assert "event: error" in text_page.get(f"/gradio_api/call/draw/{event_id}").text
    join = {"data": [], "fn_index": 10**6, "session_hash": "x"}
    assert text_page.post("/gradio_api/queue/join", json=join).status_code >= 400
    assert alive(text_page)


def test_no_file_of_the_machine_can_be_read(text_page, text_run, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("for your eyes only")
    inside = text_run.path / "run.json"
    for path in (secret, inside, f"/tmp/../{secret}", f"..{secret}", "/etc/passwd", "/proc/self/environ"):
        for route in (f"/gradio_api/file={path}", f"/file={path}", f"/gradio_api/file/{path}", f"/assets/../../{path}",
                      f"/static/..%2f..%2f{path}", f"/gradio_api/file=%2e%2e%2f{path}"):  # fmt: skip
            answer = text_page.get(route)
            assert answer.status_code in (403, 404), route
            assert "eyes only" not in answer.text
    assert alive(text_page)


def test_strangers_find_no_other_doors(text_page):
    assert text_page.get("/", headers={"host": "evil.example"}).status_code == 403
    for route in ("/docs", "/openapi.json", "/monitoring", "/gradio_api/proxy=http://example.org/", "/gradio_api/runs"):
        assert text_page.get(route).status_code == 404
    assert text_page.post("/gradio_api/process_recording", files={"files": b"x"}).status_code == 404
    page = text_page.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "fonts.googleapis" not in page.text


def test_a_page_of_another_origin_uploads_and_reads_nothing(text_page):
    for origin in ("http://evil.example", "http://localhost:3000", "null"):
        headers = {"origin": origin}
        files = {"files": ("a.txt", b"from elsewhere")}
        answers = [
            text_page.post("/gradio_api/upload", files=files, headers=headers),
            text_page.post("/gradio_api/call/draw", json={"data": [*DRAW, "a_b"]}, headers=headers),
            text_page.get("/config", headers=headers),
            text_page.options("/gradio_api/upload", headers={**headers, "access-control-request-method": "POST"}),
        ]
        assert [answer.status_code for answer in answers] == [403] * 4
        assert not any(name.startswith("access-control") for answer in answers for name in answer.headers)
    own = {"origin": str(text_page.base_url).rstrip("/")}
    assert text_page.post("/gradio_api/upload", files=files, headers=own).status_code == 200


def test_uploads_are_limited_in_sum_and_the_newest_stay(playgrounds):
    with address_of(playgrounds["digits"]) as address, httpx.Client(base_url=address, timeout=60) as client:
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
        pictures = [path for path in folder.rglob("*") if path.is_file()]  # of the page itself
        for k in range(40):
            files = {"files": ("a.bin", k.to_bytes(4, "big") * (1 << 20))}
            [path] = client.post("/gradio_api/upload", files=files).json()
            assert Path(path).stat().st_size == 4 << 20
        assert sum(found.stat().st_size for found in folder.rglob("*") if found.is_file()) < 140 << 20
        assert client.get(f"/gradio_api/file={path}").content == files["files"][1]
        assert pictures
        assert {client.get(f"/gradio_api/file={picture}").status_code for picture in pictures} == {200}


def test_an_upload_stays_in_its_folder_whatever_its_name(playgrounds):
    with address_of(playgrounds["text"]) as address, httpx.Client(base_url=address, timeout=60) as client:
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
        for name in (
            "../../x.txt",
            "/etc/x",
            "..",
            ".",
            "a/../../../b",
            "..\\..\\x",
            "%2e%2e%2fx",
            "x\0y",
            "x" * 300,
            "",
        ):
            answer = client.post("/gradio_api/upload", files={"files": (name, b"here")})
            for path in answer.json() if answer.status_code == 200 else ():
                assert Path(path).resolve().parent.parent == folder.resolve(), name
                assert Path(path).read_bytes() == b"here"
        assert client.get("/?deep_link=../x").status_code == 200
        assert client.get("/").status_code == 200
    assert not folder.exists()


def test_many_small_uploads_do_not_pile_up_either(playgrounds):
    with address_of(playgrounds["text"]) as address, httpx.Client(base_url=address, timeout=60) as client:
        for k in range(8):
            files = [("files", (f"{j}.txt", f"{k} {j}".encode())) for j in range(500)]
            assert len(client.post("/gradio_api/upload", files=files).json()) == 500
        assert len(list(Path(os.environ["GRADIO_TEMP_DIR"]).rglob("*"))) < 2 * 3000  # each in a folder of its own


@pytest.fixture
def elsewhere(monkeypatch):
    """Another machine, as far as gradio can tell; and the requests that it got."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setattr("safehttpx.is_public_ip", lambda ip: True)
    monkeypatch.setattr("gradio.processing_utils.PUBLIC_HOSTNAME_WHITELIST", ["localhost"])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, asked
        server.shutdown()


def test_no_visitor_lets_the_server_call_another_machine(text_page, playgrounds, elsewhere):
    port, asked = elsewhere
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{port}/picture.png"
        for path in (f"file={url}", f"file=%68ttp://{host}:{port}/x", f"file=HTTP://{host}:{port}/x"):
            assert text_page.get(f"/gradio_api/{path}").status_code in (403, 404)
        picture = {"path": url, "url": url, "meta": {"_type": "gradio.FileData"}}
        assert call(text_page, "draw", *DRAW, picture)[0] == "error"
        with address_of(playgrounds["digits"]) as address, httpx.Client(base_url=address, timeout=60) as client:
            drawing = {"background": picture, "layers": [picture], "composite": None}
            assert call(client, "fill", *DRAW, "any", 1.0, drawing)[0] == "error"
    assert asked == []
    assert alive(text_page)


def test_many_at_once_wait_for_their_turn_and_none_is_lost(text_page, playgrounds):
    results, seed = [None] * 12, range(12)
    threads = [
        threading.Thread(
            target=lambda k: results.__setitem__(k, call(text_page, "draw", 3, 4, 1.0, "ancestral", k, "a_b")),
            args=(k,),
        )
        for k in seed
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [event for event, _ in results] == ["complete"] * 12
    for k in (0, 11):  # each has its own samples
        again = call(text_page, "draw", 3, 4, 1.0, "ancestral", k, "a_b")
        assert again[1][1] == results[k][1][1]


def test_a_cancelled_call_stops_after_its_step(text_page, playgrounds, monkeypatch):
    playground = playgrounds["text"]
    forward = playground.bridge.network.forward
    monkeypatch.setattr(playground.bridge.network, "forward", lambda *x, **y: (time.sleep(0.05), forward(*x, **y))[1])
    before = playground.calls
    joined = text_page.post("/gradio_api/call/draw", json={"data": [1, 400, 1.0, "ancestral", 0, ""]}).json()
    for _ in range(3000):
        if playground.calls >= before + 3:
            break
        time.sleep(0.01)
    body = {"session_hash": joined["event_id"], "fn_index": 0, "event_id": joined["event_id"]}
    assert text_page.post("/gradio_api/cancel", json=body).status_code == 200
    time.sleep(0.5)
    after = playground.calls
    time.sleep(0.5)
    assert before + 3 <= playground.calls == after < before + 400
    assert alive(text_page)


BODY = {"session_hash": "a", "fn_index": 0, "event_id": "a", "data": []}
ANY_ROUTE = [
    *(("GET", path) for path in (
        "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/assets/x.js", "/static/img/logo.svg", "/gradio_api/info",
        "/gradio_api/app_id", "/gradio_api/user", "/gradio_api/token", "/gradio_api/startup-events",
        "/gradio_api/queue/data?session_hash=a", "/gradio_api/queue/status", "/gradio_api/heartbeat/abc",
        "/gradio_api/call/draw/a", "/gradio_api/file=/etc/passwd", "/gradio_api/upload_progress?upload_id=a", "/nothing",
    )),
    *(("POST", f"/gradio_api/{path}") for path in (
        "reset", "reset/", "cancel", "upload", "component_server", "queue/join", "call/draw", "run/draw", "api/draw",
    )),
    ("HEAD", "/config"), ("HEAD", "/gradio_api/file=/etc/passwd"), ("OPTIONS", "/gradio_api/cancel"), ("PUT", "/config"),
    ("DELETE", "/gradio_api/cancel"), ("PATCH", "/login"),
]  # fmt: skip


def test_a_password_is_asked_for(playgrounds):
    with address_of(playgrounds["table"], auth=("me", "secret")) as address, httpx.Client(base_url=address) as client:
        without = {}
        for method, route in ANY_ROUTE:
            with client.stream(method, route, json=BODY if method == "POST" else None) as answer:
                without[method, route] = answer.status_code
        assert {asked: status for asked, status in without.items() if status not in (401, 404, 405)} == {}
        for method in ("GET", "HEAD"):
            page = client.request(method, "/")
            assert page.status_code == 401
            assert "colour" not in page.text  # a column of the table
        assert client.post("/login", data={"username": "me", "password": "wrong"}).status_code == 400
        assert client.post("/login", data={"username": "me", "password": "x" * 5000}).status_code == 413
        for cookie in ("", "x", "None"):
            assert client.get("/config", headers={"cookie": f"access-token-x={cookie}"}).status_code == 401
        assert client.post("/login", data={"username": "me", "password": "secret"}).status_code == 200
        assert client.post("/gradio_api/cancel", json=BODY).status_code == 200
        assert "colour" in client.get("/").text
        assert call(client, "draw", *DRAW, "", "", "")[0] == "complete"


def test_ctrl_c_ends_the_server_and_leaves_nothing_behind(text_run, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    def visitor():
        for _ in range(600):
            found = re.search(r"http://\S+", "".join(map(str, seen)))
            if found is None:
                seen.append(capfd.readouterr().out)
            else:
                seen.append(httpx.get(f"{found[0]}/config", timeout=60).status_code)
                break
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=visitor)
    thread.start()
    assert dmb_("serve", text_run.path, "--port", 0) == 130
    thread.join()
    assert seen[-1] == 200
    assert capfd.readouterr().err.splitlines()[-1] == "dmb: interrupted"
    assert list(tmp_path.glob("dmb-serve-*")) == []
