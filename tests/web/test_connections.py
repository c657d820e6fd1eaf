"""A real server on loopback against clients that connect and say nothing, or too little."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from fdcnet.web.connections import MAX_CONNECTIONS, LimitedProtocol


class Impatient(LimitedProtocol):
    header_seconds = 1.0


@pytest.fixture(params=[LimitedProtocol, Impatient])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(PlainTextResponse("inside"), http=request.param, log_level="critical"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def is_closed(client: socket.socket) -> bool:
    """Waits for the server."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("port", [LimitedProtocol], indirect=True)
def test_silent_connections_lock_nobody_out(port: int) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(port)) for _ in range(2 * MAX_CONNECTIONS)]
        started = time.monotonic()
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=LimitedProtocol.header_seconds).text == "inside"
        assert time.monotonic() - started < LimitedProtocol.header_seconds  # it did not have to wait for a deadline
        assert is_closed(silent[0])  # the oldest made room


@pytest.mark.parametrize("port", [Impatient], indirect=True)
@pytest.mark.parametrize("beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_headers_have_a_deadline(port: int, beginning: bytes) -> None:
    with connect(port) as client:
        client.sendall(beginning)
        started = time.monotonic()
        assert is_closed(client)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("port", [Impatient], indirect=True)
def test_the_deadline_holds_for_each_request_of_a_connection(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while not received.endswith(b"inside"):
            received += (more := client.recv(1000))
            assert more
        client.sendall(b"GET / HT")
        assert is_closed(client)
