"""Limits on connections, so that idle or slow clients lock nobody out."""

import asyncio
from collections import Counter
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 64
MAX_PER_ADDRESS = 48  # a browser opens six


class LimitedProtocol(H11Protocol):
    """HTTP with a deadline for request headers. When there are too many connections, the oldest idle one is closed."""

    header_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened = self.loop.time()
        self._start_deadline()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._stop_deadline()
        elif self._deadline is None:  # the beginning of another request
            self._start_deadline()

    @property
    def idle(self) -> bool:
        """Whether no request is being served."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        others = cast("set[LimitedProtocol]", self.connections) - {self}
        others = {other for other in others if not other.transport.is_closing()}
        counts = Counter(other.address for other in others)
        if counts[self.address] >= MAX_PER_ADDRESS:
            crowded = self.address
        elif len(others) >= MAX_CONNECTIONS:
            [(crowded, _)] = counts.most_common(1)
        else:
            return
        idle = [other for other in others if other.address == crowded and other.idle]
        min(idle, key=lambda other: other.opened, default=self).transport.abort()
