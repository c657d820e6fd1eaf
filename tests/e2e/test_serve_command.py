"""`fdcnet serve` as a user starts it: links, the token, a port that is taken, and its end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fdcnet.cli import serve
from fdcnet.errors import UserError


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[list[str]]:
    """The lines that a server prints which listens beyond this machine; its model is not there yet."""
    command = [sys.executable, "-m", "fdcnet", "serve", str(tmp_path / "new"), "--host", "0.0.0.0", "--port", "0"]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONUNBUFFERED": "1"}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().strip()]
    while lines[-1] and "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline().strip())
    try:
        yield lines
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, process.stdout.read()


def test_beyond_this_machine_only_the_link_gets_in(outside: list[str]) -> None:
    link = outside[0]
    address, _, token = link.partition("?token=")
    assert address.startswith("http://localhost:") and len(token) > 20
    with httpx.Client(base_url=address, timeout=30) as client:
        assert client.get("/").status_code == 401
        assert client.get("api/model").status_code == 401
        assert client.get("api/model", headers={"authorization": f"Bearer {token}"}).json()["version"] == 0
        assert client.get(link, follow_redirects=True).url == address
        assert client.get("api/model").json()["name"] == "new"
        assert client.get("api/model", headers={"host": "evil.example"}).status_code == 403


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} is in use"):
            serve._listen("127.0.0.1", port)
    with pytest.raises(UserError, match="cannot be listened at"):
        serve._listen("no.such.host.invalid", 0)


def test_answers_come_at_once() -> None:
    with serve._listen("localhost", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # else asyncio leaves Nagle's algorithm on
        socket.create_connection(
            listening.getsockname()[:2], timeout=5
        ).close()  # the link is good as soon as it is printed


def test_links_for_any_kind_of_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_own_address", lambda: "192.168.1.7")
    assert serve._links("127.0.0.1", 8000, None) == ["http://127.0.0.1:8000/"]
    assert serve._links("::1", 80, None) == ["http://[::1]:80/"]
    assert serve._links("0.0.0.0", 8000, "k") == ["http://localhost:8000/?token=k", "http://192.168.1.7:8000/?token=k"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match="needs the package uvicorn"):
        serve.serve(tmp_path)
