"""`fdcnet serve`"""

import contextlib
import errno
import html
import secrets
import socket
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console
from fdcnet.errors import UserError
from fdcnet.teaching import KEEP

UNREACHABLE = ("192.0.2.1", 9)  # reserved for documentation; connecting a UDP socket to it sends nothing


def serve(
    model: Annotated[Path, typer.Argument(help="Saved model. If it does not exist, the first lesson creates it.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 also serves other devices, such as a phone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    token: Annotated[str | None, typer.Option(help="Token in the link. [default: random]")] = None,
    no_token: Annotated[bool, typer.Option("--no-token", help="Serve everybody who can reach the address.")] = False,
    keep: Annotated[int, typer.Option(min=0, help="Number of earlier versions to keep.")] = KEEP,
    device: options.Device = None,
    engine: options.Engine = "torch",
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that compute predictions. 1 computes them in the server itself.")
    ] = 1,
) -> None:
    """Serve a local web page to try photos, teach new classes and roll back.

    The page loads nothing from other sites and sends nothing away. It opens only with the token in the printed link, so
    other accounts of this machine cannot use it. The connection is not encrypted, so serve other devices only in
    networks that you trust.

    Example: `fdcnet serve birds --open`
    """
    try:
        import uvicorn

        from fdcnet.web.app import make_app
        from fdcnet.web.connections import LimitedProtocol
    except ImportError as error:
        raise UserError(
            f"The page needs the package {error.name}, which is not installed.", "Install it: pip install 'fdcnet[web]'"
        ) from error
    if token and no_token:
        raise UserError("--token and --no-token contradict each other.", "Use one of them.")
    token = None if no_token else token or secrets.token_urlsafe(16)
    listening = _listen(host, port)
    app = make_app(
        model, host=host, token=token, device=device or "auto", engine=engine, keep=keep, num_workers=workers
    )
    links = _links(host, listening.getsockname()[1], token)
    for link in links:
        console.print(link, markup=False, highlight=False, soft_wrap=True)
    console.print("Press Ctrl-C to stop.", markup=False)
    settings = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    with _browser(links[0]) if open_ else contextlib.nullcontext():
        try:
            uvicorn.Server(settings).run(sockets=[listening])
        except KeyboardInterrupt:
            console.print("Stopped.")


@contextlib.contextmanager
def _browser(link: str) -> Iterator[None]:
    """Open the link through a private file: every account can see the arguments of a command, and so the token."""
    with tempfile.TemporaryDirectory(prefix="fdcnet-open-") as folder:
        page = Path(folder) / "fdcnet.html"
        page.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={html.escape(link)}">\n', "utf-8")
        webbrowser.open(page.as_uri())
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)  # with the protocol, or asyncio leaves Nagle's delay on
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # already here, so that the link works as soon as it is printed
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"Port {port} is in use.", f"Choose another: --port {port + 1}") from error
        problem = f"Cannot listen on {host}, port {port}: {error.strerror or error}."
        raise UserError(problem, "Choose another --host or --port.") from error
    return listening


def _links(host: str, port: int, token: str | None) -> list[str]:
    """Links to the page, for this machine and for others."""
    names = ["localhost", _own_address()] if host in ("0.0.0.0", "::", "") else [f"[{host}]" if ":" in host else host]
    key = f"?token={token}" if token else ""
    return [f"http://{name}:{port}/{key}" for name in names if name]


def _own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(UNREACHABLE)
        except OSError:
            return None
        address: Any = probe.getsockname()[0]
        return str(address)
