"""Listeners that pass events on."""

import inspect
from unittest.mock import Mock

from fdcnet.runtime.listener import ForwardingListener, Listener


def test_a_forwarding_listener_passes_every_event_on() -> None:
    events = {name: value for name, value in vars(Listener).items() if inspect.isfunction(value)}
    assert {"note", "step", "task_ended", "close"} <= events.keys()
    for name, event in events.items():
        inner = Mock(spec=Listener)
        arguments = list(inspect.signature(event).parameters)[1:]
        getattr(ForwardingListener(inner), name)(*arguments)
        assert [(call[0], list(call[1])) for call in inner.method_calls] == [(name, arguments)]
