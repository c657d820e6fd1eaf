"""The server under kills, load and malformed requests, and its memory over many lessons."""

import contextlib
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from kills import part_of, run_child, same, teach, weights_of
from PIL import Image
from readers import mutate
from rows import Row, scratch

from fdcnet.data.synthetic import make_synthetic

GOOD, BAD = "127.0.0.2", "127.0.0.3"  # addresses of this machine, so that limits per address tell them apart
PATIENCE = 60.0  # seconds; the machine may be busy
Count = Callable[..., None]  # one request; with a text if it failed


@dataclass(frozen=True)
class Server:
    pid: int
    port: int
    log: Path

    @property
    def link(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, address: str = GOOD) -> httpx.Client:
        transport = httpx.HTTPTransport(local_address=address)
        return httpx.Client(base_url=self.link, transport=transport, timeout=PATIENCE)

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def is_alive(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@contextlib.contextmanager
def serving(model: Path, log: Path) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pid = os.fork()  # importing torch would take longer than most tries
    if pid == 0:
        _serve(model, port, log)
    server = Server(pid, port, log)
    try:
        deadline = time.monotonic() + PATIENCE
        with server.client() as client:
            while time.monotonic() < deadline:
                with contextlib.suppress(httpx.TransportError):
                    client.get("/api/model")
                    break
                time.sleep(0.05)
        yield server
    finally:
        server.end()


def _serve(model: Path, port: int, log: Path) -> None:
    from fdcnet.cli import main

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    tempfile.tempdir = str(log.parent)
    sys.argv = ["fdcnet", "serve", str(model), "--no-token", "--port", str(port), "--device", "cpu"]
    with contextlib.suppress(BaseException):
        main()
    os._exit(1)


def photo(seed: int, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (48, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def lesson_files(name: str, seed: int, num: int = 6) -> list[tuple[str, tuple[str | None, bytes | str]]]:
    return [("class", (None, name)), *(("photo", (f"{i}.jpg", photo(seed + i))) for i in range(num))]


def new_model(root: Path) -> Path:
    """A model of two classes with the smallest backbone."""
    dataset = make_synthetic(root / "photos", num_classes=2, train_per_class=8, test_per_class=2, size=40)
    end = run_child(lambda: teach(root / "model", part_of(dataset, 0, 2), root / "cache"))
    assert end.code == 0, end.error
    return root / "model"


def wait_for_lesson(client: httpx.Client) -> str:
    deadline = time.monotonic() + 10 * PATIENCE
    while (state := client.get("/api/lesson").json()["state"]) == "learning" and time.monotonic() < deadline:
        time.sleep(0.05)
    return str(state)


def kill_server(tries: int, seconds: float) -> Row:
    """Kill the server during a lesson: the model is whole, the next server says what was lost and cleans up."""
    row, chance, started = Row("kill-server"), random.Random("kill-server"), time.monotonic()
    with scratch() as folder:
        root = Path(folder)
        whole, model = new_model(root), root / "try"
        old = weights_of(whole)
        with serving(Path(shutil.copytree(whole, model)), root / "log") as server, server.client() as client:
            begun = time.monotonic()
            client.post("/api/lesson", files=lesson_files("heron", 0))
            assert wait_for_lesson(client) == "done", client.get("/api/lesson").text
            length = time.monotonic() - begun
        new = weights_of(model)
        states: dict[str, int] = {}
        while row.tries < tries and time.monotonic() - started < seconds:
            row.tries += 1
            shutil.rmtree(model)
            shutil.copytree(whole, model)
            with serving(model, root / "log") as server, server.client() as client:
                client.post("/api/lesson", files=lesson_files("heron", 0))
                time.sleep(chance.uniform(0, length))
            found = weights_of(model)
            taught = same(found, new)
            if not taught and not same(found, old):
                row.fail("the model is neither the old nor the new one")
            with serving(model, root / "log") as server, server.client() as client:
                state = client.get("/api/lesson").json()["state"]
                states[state] = states.get(state, 0) + 1
                if state == "none" and not taught:
                    row.fail("the lost lesson is not reported")
                if list(root.glob("fdcnet-serve-*/upload-*")):
                    row.fail("uploads are left")
    row.note = "after restarts: " + ", ".join(f"{state} {number}" for state, number in states.items())
    return row


def server_memory(tries: int, seconds: float) -> Row:
    """Lessons, each rolled back: the memory of the server must level off."""
    row, started, sizes = Row("server-memory"), time.monotonic(), []
    with scratch() as folder:
        root = Path(folder)
        with serving(new_model(root), root / "log") as server, server.client() as client:
            while row.tries < tries and time.monotonic() - started < seconds:
                row.tries += 1
                client.post("/api/lesson", files=lesson_files(f"bird {row.tries}", 100 * row.tries))
                if wait_for_lesson(client) != "done":
                    row.fail(client.get("/api/lesson").text[:300])
                client.post("/api/predict", content=photo(row.tries), headers={"content-type": "image/jpeg"})
                client.post("/api/rollback")
                sizes.append(server.megabytes())
    if len(sizes) == tries and sizes[-1] - sizes[tries // 2 - 1] > 20:
        row.fail("memory keeps growing")
    shown = {number: sizes[number - 1] for number in (1, 10, 20, 30, 40, 50, 75, 100) if number <= len(sizes)}
    row.note = "MB after lesson " + ", ".join(f"{number}: {size:.0f}" for number, size in shown.items())
    return row


def server_load(tries: int, seconds: float) -> Row:
    """Good clients among slow and malformed ones, until the time is over. `tries` is a number of requests."""
    row, lock, over = Row("server-load"), threading.Lock(), threading.Event()
    with scratch() as folder:
        root = Path(folder)
        with serving(new_model(root), root / "log") as server:
            first = server.megabytes()

            def count(problem: str = "") -> None:
                with lock:
                    row.tries += 1
                    if problem:
                        row.fail(problem)

            jobs = (
                [(_good, i) for i in range(3)] + [(_slow, i) for i in range(16)] + [(_malformed, i) for i in range(4)]
            )
            threads = [threading.Thread(target=job, args=(server, i, over, count)) for job, i in jobs]
            for thread in threads:
                thread.start()
            deadline, peak = time.monotonic() + seconds, first
            while time.monotonic() < deadline and row.tries < tries and server.is_alive():
                peak = max(peak, server.megabytes())
                time.sleep(0.5)
            if not server.is_alive():
                row.fail("the server has ended")
            over.set()
            for thread in threads:
                thread.join()
            if peak - first > 1000:
                row.fail(f"{peak - first:.0f} MB more")
            with server.client() as client:
                if client.get("/api/model").status_code != 200:
                    row.fail("no answer at the end")
        if "Traceback" in (log := (root / "log").read_text(errors="replace")):
            row.fail(log[log.index("Traceback") :][-500:])
    row.note = f"from {first:.0f} to {peak:.0f} MB"
    return row


def _good(server: Server, number: int, over: threading.Event, count: Count) -> None:
    with server.client() as client:
        while not over.is_set():
            try:
                if number:
                    found = client.post("/api/predict", content=photo(number), headers={"content-type": "image/jpeg"})
                else:
                    found = client.get("/api/model")
                count("" if found.status_code in (200, 429, 503) else f"{found.status_code}: {found.text[:200]}")
            except httpx.HTTPError as error:
                count(f"{type(error).__name__}: {error}")


def _slow(server: Server, number: int, over: threading.Event, count: Count) -> None:
    """A byte per second, of the headers or of the body."""
    head = b"POST /api/predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: image/jpeg\r\ncontent-length: 100000\r\n"
    while not over.is_set():
        with contextlib.suppress(OSError), _connect(server) as connection:
            connection.sendall(head + b"\r\n" if number % 2 else head)
            while not over.wait(1.0):
                connection.sendall(b"x")
        count()


def _malformed(server: Server, number: int, over: threading.Event, count: Count) -> None:
    chance = random.Random(number)
    body = photo(number, "PNG")
    head = b"POST /api/predict?top=3 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: image/png\r\n"
    valid = b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)
    while not over.is_set():
        with contextlib.suppress(OSError), _connect(server) as connection:
            connection.sendall(mutate(valid, chance))
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(64)
            if answer.startswith(b"HTTP/1.1 500"):
                count("500 for a malformed request")
                continue
        count()


def _connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(BAD, 0))


def schemathesis(tries: int, seconds: float) -> Row:
    """Requests generated from openapi.json: no server error, and every answer as documented."""
    row = Row("schemathesis")
    command = shutil.which("schemathesis")
    if command is None:
        row.note = "skipped: schemathesis is not installed"
        return row
    with scratch() as folder:
        root = Path(folder)
        with serving(new_model(root), root / "log") as server:
            report = root / "report.ndjson"
            done = subprocess.run(
                [
                    *(command, "run", f"{server.link}/openapi.json", "--max-examples", str(tries), "--seed", "1"),
                    *("--checks", "not_a_server_error,status_code_conformance,response_schema_conformance"),
                    *("--report", "ndjson", "--report-ndjson-path", str(report)),
                ],
                capture_output=True,
                text=True,
                timeout=seconds,
                cwd=root,  # it leaves a cache there
                check=False,
            )
            row.tries = report.read_text().count('"status_code"') if report.is_file() else 0
            if done.returncode:
                row.fail(done.stdout[-2000:])
    return row
