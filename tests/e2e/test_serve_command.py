"""`fdcnet serve` as a user starts it: links, the token, a port that is taken, and its end."""

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from PIL import Image

from fdcnet.cli import serve
from fdcnet.errors import UserError


@contextmanager
def serving(*arguments: str, end: signal.Signals = signal.SIGINT, **environment: str) -> Iterator[list[str]]:
    """The lines that `fdcnet serve` prints."""
    command = [sys.executable, "-m", "fdcnet", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().strip()]
    while lines[-1] and "Ctrl-C" not in lines[-1]:
        lines.append(process.stdout.readline().strip())
    try:
        yield lines
    finally:
        process.send_signal(end)
        assert process.wait(60) == (0 if end == signal.SIGINT else -end), process.stdout.read()


def test_only_the_link_gets_in(tmp_path: Path) -> None:
    with serving(str(tmp_path / "new"), "--host", "0.0.0.0") as [link, *_]:
        address, _, token = link.partition("?token=")
        assert address.startswith("http://localhost:") and len(token) > 20
        with httpx.Client(base_url=address, timeout=30) as client:
            assert client.get("/").status_code == 401
            assert client.get("api/model").status_code == 401
            assert client.get("api/model", headers={"authorization": f"Bearer {token}"}).json()["version"] == 0
            assert client.get("api/model", auth=("", token)).status_code == 200
            assert client.get(link, follow_redirects=True).url == address
            assert client.get("api/model").json()["name"] == "new"
            assert client.get("api/model", headers={"host": "evil.example"}).status_code == 403


def test_opening_a_browser_does_not_show_the_token_to_other_accounts(tmp_path: Path) -> None:
    """On loopback there is a token, too. The browser gets it through a private file."""
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    copy = f'import shutil, sys; shutil.copytree(sys.argv[1][7:].rpartition("/")[0], "{seen}")'
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n{sys.executable} -c \'{copy}\' "$@"\n')
    browser.chmod(0o700)
    with serving(str(tmp_path / "new"), "--open", BROWSER=str(browser)) as [link, *_]:
        token = link.partition("?token=")[2]
        assert httpx.get(link, timeout=60).status_code == 303  # it answers after it has opened the browser
        assert len(token) > 20 and token not in (tmp_path / "arguments").read_text()
        assert link in (seen / "fdcnet.html").read_text()
        assert seen.stat().st_mode & 0o077 == 0


def test_without_a_token_only_if_asked_for(tmp_path: Path) -> None:
    with serving(str(tmp_path / "new"), "--no-token") as [link, *_]:
        assert "token" not in link
        assert httpx.get(f"{link}api/model", timeout=30).json()["version"] == 0
    with pytest.raises(UserError, match="contradict"):
        serve.serve(tmp_path / "new", token="key", no_token=True)


def test_what_a_killed_server_leaves_is_removed_and_reported(tmp_path: Path) -> None:
    model, temporary = str(tmp_path / "new"), tmp_path / "temporary"
    temporary.mkdir()
    files: list[tuple[str, tuple[str | None, bytes | str]]] = []
    for name in ("heron", "wren"):
        files.append(("class", (None, name)))
        for i in range(8):
            buffer = io.BytesIO()
            Image.effect_noise((300, 300), 10 + i).convert("RGB").save(buffer, "JPEG")
            files.append(("photo", ("photo.jpg", buffer.getvalue())))
    with serving(model, "--no-token", end=signal.SIGKILL, TMPDIR=str(temporary)) as [link, *_]:
        assert httpx.post(f"{link}api/lesson", files=files, timeout=60).status_code == 202
    assert len(list(temporary.glob("fdcnet-serve-*/upload-*/*"))) == 16
    with serving(model, "--no-token", TMPDIR=str(temporary)) as [link, *_]:
        lesson = httpx.get(f"{link}api/lesson", timeout=30).json()
        assert (lesson["state"], lesson["problem"]) == ("lost", "The server stopped during a lesson on heron, wren.")
        assert list(temporary.glob("fdcnet-serve-*/upload-*")) == []
    assert list(temporary.glob("fdcnet-*")) == []


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"Port {port} is in use"):
            serve._listen("127.0.0.1", port)
    with pytest.raises(UserError, match="Cannot listen on"):
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
