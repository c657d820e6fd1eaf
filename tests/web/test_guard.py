"""Who gets in: hosts, origins, the token, sizes, and the headers of every answer."""

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from fdcnet.web import guard
from fdcnet.web.guard import Guard, is_local

LIMITS = {"/large": 1000, None: 100}


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await PlainTextResponse("inside")(scope, receive, send)


def client(host: str = "127.0.0.1", token: str | None = None, url: str = "http://localhost:8000") -> TestClient:
    return TestClient(Guard(inner, host, token, LIMITS), url, follow_redirects=False)


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:9", "[::1]:8000"])
def test_local_names_are_served(name: str) -> None:
    assert client().get("/", headers={"host": name}).text == "inside"


@pytest.mark.parametrize(
    "name", ["evil.example", "localhost.evil.example", "192.168.1.7", "", "127.0.0.1.nip.io", "[bad"]
)
def test_other_names_are_not(name: str) -> None:
    assert client().get("/", headers={"host": name}).status_code == 403


def test_beyond_localhost_addresses_and_own_names_are_served_but_no_foreign_ones(monkeypatch: Any) -> None:
    monkeypatch.setattr("fdcnet.web.guard.socket.gethostname", lambda: "Den.lan")
    outside = client("0.0.0.0", "key")
    known = {"authorization": "Bearer key"}
    for name in ("192.168.1.7:8000", "[fe80::1]", "den.lan", "den.local:80", "localhost"):
        assert outside.get("/x", headers={"host": name, **known}).status_code == 200
    assert outside.get("/x", headers={"host": "evil.example", **known}).status_code == 403
    named = client("shed.lan", "key")
    assert named.get("/x", headers={"host": "shed.lan", **known}).status_code == 200
    assert named.get("/x", headers={"host": "192.168.1.7", **known}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:9000", "http://localhost:8000.evil", "http://["]
)
def test_foreign_origins_are_refused(origin: str) -> None:
    answer = client().post("/x", headers={"origin": origin})
    assert answer.status_code == 403 and answer.json()["problem"] == "Requests from other sites are not allowed."


def test_the_own_origin_and_programs_are_served() -> None:
    assert client().post("/x", headers={"origin": "http://localhost:8000"}).text == "inside"
    assert client().post("/x").text == "inside"
    assert client().get("/x", headers={"sec-fetch-site": "same-origin"}).text == "inside"


def test_other_pages_may_link_here_but_not_load_from_here() -> None:
    foreign = {"sec-fetch-site": "cross-site"}
    assert client().get("/", headers={**foreign, "sec-fetch-mode": "navigate"}).text == "inside"
    assert client().get("/", headers={**foreign, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client().get("/api/model", headers={**foreign, "sec-fetch-mode": "navigate"}).status_code == 403


def test_the_token_of_the_link_becomes_a_cookie() -> None:
    locked = client("0.0.0.0", "key")
    page = locked.get("/")
    assert page.status_code == 401 and "Token required" in page.text
    assert locked.get("/api/model").json()["problem"] == "Token required."
    for wrong in ("/?token=", "/?token=kez", "/?token=k%C3%A9y"):
        assert locked.get(wrong).status_code == 401
    assert locked.get("/api/model?token=key").status_code == 401  # only the page takes it from the address
    answer = locked.get("/?token=key")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=lax" in answer.headers["set-cookie"]
    assert locked.get("/api/model").text == "inside"


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic a2V5Og=="},  # 'key' as the user name
        {"authorization": "Basic %%%"},
        {"authorization": "key"},
        {"cookie": "fdcnet-8000=wrong"},
        {"cookie": "; =\x01"},
    ],
)
def test_a_wrong_token(header: dict[str, str]) -> None:
    assert client("0.0.0.0", "key").get("/x", headers=header).status_code == 401


def test_the_token_is_also_a_bearer_token_and_a_password() -> None:
    locked = client(token="key")
    assert locked.get("/x").status_code == 401  # also on loopback
    assert locked.get("/x", headers={"authorization": "Bearer key"}).text == "inside"
    assert locked.get("/x", auth=("anybody", "key")).text == "inside"


def test_the_token_page_has_its_style() -> None:
    locked = client(token="key")
    page = locked.get("/")
    assert 'href="static/page.css"' in page.text and "form-action 'self'" in page.headers["content-security-policy"]
    assert locked.get("/static/page.css").text == "inside"


def test_a_body_must_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten bytes in the grace period of 0.5 s buy another 10 s, or next to nothing."""
    monkeypatch.setattr(guard, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(guard, "MIN_BYTES_PER_SECOND", 1)
    complete = {"type": "http.request", "body": b"", "more_body": False}

    async def send_after(*seconds: float) -> None:
        pauses = iter(seconds)

        async def receive() -> dict[str, object]:
            if (pause := next(pauses, None)) is None:
                return complete
            await anyio.sleep(pause)
            return {"type": "http.request", "body": b"x" * 10, "more_body": True}

        limited = guard._limited(receive, 1000)
        while (await limited())["more_body"]:
            pass
        await limited()  # the body is complete: no deadline from here on

    anyio.run(send_after, 0.0, 1.0)
    monkeypatch.setattr(guard, "MIN_BYTES_PER_SECOND", 1000)
    with pytest.raises(guard.Refused, match="too slow"):
        anyio.run(send_after, 0.0, 60.0)


@pytest.mark.parametrize(("addresses", "expected"), [(1, guard.MAX_PER_ADDRESS), (5, guard.MAX_BODIES)])
def test_few_bodies_are_in_memory_at_a_time(addresses: int, expected: int) -> None:
    inside = most = 0

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.sleep(0.02)
        inside -= 1

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"x"}

    async def send(message: object) -> None: ...

    async def many() -> None:
        served = Guard(slow, "127.0.0.1", None, LIMITS)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/x",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        async with anyio.create_task_group() as group:
            for number in range(20):
                client = (f"192.0.2.{number % addresses}", 1)
                group.start_soon(served, scope | {"client": client}, receive, send)

    anyio.run(many)
    assert most == expected


def test_bodies_have_a_limit_whether_they_say_their_length_or_not() -> None:
    def in_pieces(number: int) -> Iterator[bytes]:
        for _ in range(number):
            yield b"x" * 10

    assert client().post("/x", content=b"x" * 100).text == "inside"
    assert client().post("/x", content=b"x" * 101).status_code == 413
    assert client().post("/large", content=b"x" * 1000).text == "inside"
    assert client().post("/x", content=in_pieces(10)).text == "inside"
    with pytest.raises(Exception, match="exceeds"):  # the application turns it into 413
        client().post("/x", content=in_pieces(11))


def test_every_answer_has_its_headers() -> None:
    for answer in (client().get("/"), client().get("/", headers={"host": "evil.example"})):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_what_is_local() -> None:
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.1.1", "box.lan", "")))
