"""Who may ask, and how much they may send. Everything passes here before the application sees it."""

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fdcnet.errors import UserError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
EVERYWHERE = ("0.0.0.0", "::", "")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LOCKED = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>fdcnet</title>
<h1>This page needs its key</h1><p>Open the whole link that <code>fdcnet serve</code> printed: it ends in
<code>?token=…</code>. The link of an earlier start is no longer good.</p></html>"""


class Refused(UserError):
    """A request that is not served, with its HTTP status."""

    def __init__(self, status: int, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.status = status


class Guard:
    """ASGI middleware. `limits`: path -> most bytes of a body; None stands for all other paths."""

    def __init__(self, app: ASGIApp, host: str, token: str | None, limits: Mapping[str | None, int]) -> None:
        self.app, self.token, self.limits = app, token, limits
        self.anywhere = host in EVERYWHERE
        self.hosts = LOOPBACK if is_local(host) else LOOPBACK | {host.lower(), *own_names()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers, limit = Headers(scope=scope), self.limits.get(scope["path"], self.limits[None])
        try:
            self._check_host(headers)
            self._check_origin(scope, headers)
            answer = self._check_token(scope, headers)
            if (length := headers.get("content-length", "0")).isdigit() and int(length) > limit:
                raise too_large(limit)
        except Refused as error:
            answer = refusal(error)
        if answer is not None:
            await answer(scope, receive, send_guarded)
        else:
            await self.app(scope, _counted(receive, limit), send_guarded)

    def _check_host(self, headers: Headers) -> None:
        """A foreign name that leads here (DNS rebinding) would make foreign pages ours. An address cannot do that."""
        name = _host_name(headers.get("host", ""))
        if name not in self.hosts and not (self.anywhere and _is_address(name)):
            raise Refused(
                403, f"This server is not called '{name[:100]}'.", "Use the link that 'fdcnet serve' printed."
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origin = headers.get("origin")
        foreign = origin is not None and _place(origin) != headers.get("host")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            opens_page = scope["method"] == "GET" and scope["path"] == "/"
            foreign = foreign or not (opens_page and headers.get("sec-fetch-mode") == "navigate")
        if foreign:
            raise Refused(403, "Other pages may not use this server.", "Use its own page.")

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """The link's token becomes a cookie, so that it does not stay in the address."""
        if self.token is None:
            return None
        cookie = f"fdcnet-{(scope.get('server') or ('', 0))[1]}"  # browsers do not keep cookies apart by port
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._is_token(asked):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, self.token, httponly=True, samesite="lax", max_age=30 * 86400)
            return answer
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(given) or self._is_token(_cookie(headers, cookie)):
            return None
        if scope["path"] == "/":
            return HTMLResponse(LOCKED, 401)
        raise Refused(401, "This server needs its token.", "Open the link that 'fdcnet serve' printed, token and all.")

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), (self.token or "").encode())


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def refusal(error: UserError) -> JSONResponse:
    body = {"problem": error.problem, "remedy": error.remedy}
    return JSONResponse(body, getattr(error, "status", 400))


def too_large(limit: int) -> Refused:
    return Refused(413, f"That is more than {limit // 10**6} MB.", "Send smaller photos, or fewer at a time.")


def is_local(host: str) -> bool:
    return host.lower() in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name.partition('.')[0]}.local"}


def _counted(receive: Receive, limit: int) -> Receive:
    """A body may also come without saying how long it is."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise too_large(limit)
        return message

    return counted


def _cookie(headers: Headers, name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _host_name(host: str) -> str:
    """Without port and brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
