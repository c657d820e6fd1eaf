"""Checks host, origin, token, and size and speed of the body before the application sees a request."""

import base64
import contextlib
import ipaddress
import secrets
import socket
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, fail_after
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
STATIC = "/static/"  # stylesheet and scripts are not secret, and the token page needs the stylesheet
TOKEN_PAGE = Path(__file__).with_name("static") / "token.html"
MAX_BODIES = 4  # photos in memory at the same time
MAX_PER_ADDRESS = 2  # of them, so that slow uploads from one address do not stop those of others
GRACE_SECONDS = 30.0
MIN_BYTES_PER_SECOND = 20_000  # a body that arrives more slowly, after the grace period, is refused


class Refused(UserError):
    """A refused request, with its HTTP status."""

    def __init__(self, status: int, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.status = status


class Guard:
    """ASGI middleware. `limits`: path -> maximum bytes of a body; None stands for all other paths."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        token: str | None,
        limits: Mapping[str | None, int],
        max_bodies: int = MAX_BODIES,
    ) -> None:
        self.app, self.token, self.limits = app, token, limits
        self.anywhere = host in EVERYWHERE
        self.bodies = CapacityLimiter(max_bodies)
        self.max_per_address = max(MAX_PER_ADDRESS, max_bodies // 2)
        self.bodies_from: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()
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
        elif scope["method"] == "POST" and scope["path"] not in self.limits:
            address = (scope.get("client") or ("", 0))[0]
            async with self.bodies_from.setdefault(address, CapacityLimiter(self.max_per_address)), self.bodies:
                await self.app(scope, _limited(receive, limit), send_guarded)
        else:
            await self.app(scope, _limited(receive, limit), send_guarded)

    def _check_host(self, headers: Headers) -> None:
        """Prevents DNS rebinding: a foreign name that resolves to this machine. IP addresses cannot be rebound."""
        name = _host_name(headers.get("host", ""))
        if name not in self.hosts and not (self.anywhere and _is_address(name)):
            raise Refused(403, f"Unknown host name '{name[:100]}'.", "Use the link that 'fdcnet serve' printed.")

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origin = headers.get("origin")
        foreign = origin is not None and _netloc(origin) != headers.get("host")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            opens_page = scope["method"] == "GET" and scope["path"] == "/"
            foreign = foreign or not (opens_page and headers.get("sec-fetch-mode") == "navigate")
        if foreign:
            raise Refused(403, "Requests from other sites are not allowed.", "Use the server's own page.")

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """The token in the link becomes a cookie, so that it does not stay in the address bar."""
        if self.token is None or scope["path"].startswith(STATIC):
            return None
        cookie = f"fdcnet-{(scope.get('server') or ('', 0))[1]}"  # cookies are shared between ports
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._is_token(asked):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, self.token, httponly=True, samesite="lax", max_age=30 * 86400)
            return answer
        if self._is_token(_authorization(headers)) or self._is_token(_cookie(headers, cookie)):
            return None
        if scope["path"] == "/":
            policy = HEADERS["content-security-policy"].replace("form-action 'none'", "form-action 'self'")
            return HTMLResponse(TOKEN_PAGE.read_bytes(), 401, {"content-security-policy": policy})
        remedy = "Open the full link that 'fdcnet serve' printed. Programs send the token as a bearer token."
        raise Refused(401, "Token required.", remedy)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), (self.token or "").encode())


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def refusal(error: UserError) -> JSONResponse:
    body = {"problem": error.problem, "remedy": error.remedy}
    status = getattr(error, "status", 400)
    unread = status in (408, 413)  # the rest of the body would be taken for the next request
    return JSONResponse(body, status, {"connection": "close"} if unread else None)


def too_large(limit: int) -> Refused:
    return Refused(413, f"The upload exceeds {limit // 10**6} MB.", "Send smaller photos, or fewer at a time.")


def is_local(host: str) -> bool:
    return host.lower() in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name.partition('.')[0]}.local"}


def _limited(receive: Receive, limit: int) -> Receive:
    """Refuses a body that is too long, whether or not it states its length, or that arrives too slowly."""
    received, started, complete = 0, 0.0, False

    async def limited() -> Message:
        nonlocal received, started, complete
        if complete:  # from here on the application only waits for the client to disconnect
            return await receive()
        started = started or time.monotonic()
        seconds = GRACE_SECONDS + received / MIN_BYTES_PER_SECOND - (time.monotonic() - started)
        try:
            with fail_after(max(0.0, seconds)):
                message = await receive()
        except TimeoutError:
            raise Refused(408, "The upload was too slow.", "Try again with a better connection.") from None
        received += len(message.get("body", b""))
        if received > limit:
            raise too_large(limit)
        complete = not message.get("more_body", False)
        return message

    return limited


def _authorization(headers: Headers) -> str:
    """Bearer token, or the password of basic authentication with any user name."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() == "basic":
        with contextlib.suppress(ValueError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
    return ""


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
