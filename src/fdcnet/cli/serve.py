"""`fdcnet serve`"""

import errno
import secrets
import socket
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from fdcnet.cli import options
from fdcnet.cli.console import console
from fdcnet.errors import UserError
from fdcnet.teaching import KEEP

NOWHERE = ("192.0.2.1", 9)  # an address for examples: asking for the way to it sends nothing


def serve(
    model: Annotated[
        Path, typer.Argument(help="A saved model; if it is not there yet, the page's first lesson makes it.")
    ],
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0: for other devices, too, such as a phone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    token: Annotated[
        str | None, typer.Option(help="Word that the link must contain. [default beyond this machine: a random one]")
    ] = None,
    keep: Annotated[int, typer.Option(min=0, help="Earlier versions that lessons keep.")] = KEEP,
    device: options.Device = None,
) -> None:
    """Open a local page: look at photos, teach the model new classes, go back.

    Nothing is loaded from elsewhere and nothing leaves this machine. Beyond it, only who has the link gets in; the
    connection is not encrypted, so use it in networks that you trust.

    Example: `fdcnet serve birds --open`
    """
    try:
        import uvicorn

        from fdcnet.web.app import make_app
        from fdcnet.web.guard import is_local
    except ImportError as error:
        raise UserError(
            f"The page needs the package {error.name}, which is not installed.", "Install it: pip install 'fdcnet[web]'"
        ) from error
    if not is_local(host):
        token = token or secrets.token_urlsafe(16)
    app = make_app(model, host=host, token=token, device=device or "auto", keep=keep)
    listening = _listen(host, port)
    links = _links(host, listening.getsockname()[1], token)
    for link in links:
        console.print(link, markup=False, highlight=False)
    console.print("Ctrl-C ends it.", markup=False)
    if open_:
        webbrowser.open(links[0])
    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        limit_concurrency=64,
    )
    try:
        uvicorn.Server(settings).run(sockets=[listening])
    except KeyboardInterrupt:
        console.print("Ended.")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)  # named, or asyncio leaves Nagle's delay on
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # now: whoever follows the link at once waits instead of being refused
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"Port {port} is in use.", f"Choose another: --port {port + 1}") from error
        problem = f"{host}, port {port}, cannot be listened at: {error.strerror or error}."
        raise UserError(problem, "Choose another --host or --port.") from error
    return listening


def _links(host: str, port: int, token: str | None) -> list[str]:
    """Where the page is, for this machine and for others."""
    names = ["localhost", _own_address()] if host in ("0.0.0.0", "::", "") else [f"[{host}]" if ":" in host else host]
    key = f"?token={token}" if token else ""
    return [f"http://{name}:{port}/{key}" for name in names if name]


def _own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(NOWHERE)
        except OSError:
            return None
        address: Any = probe.getsockname()[0]
        return str(address)
