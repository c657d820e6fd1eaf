"""Where the command prints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from fdcnet.errors import printable
from fdcnet.runtime.listener import Listener
from fdcnet.runtime.progress import Bars, Lines, percent
from fdcnet.training.stop import Terminated, terminating_like_ctrl_c

__all__ = ["console", "errors", "percent", "stop_message", "watcher"]


class _Printable(RenderHook):
    """Escapes control characters in all output: a file name must not send commands to the terminal."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_PrintableText(renderable) for renderable in renderables]


class _PrintableText:
    def __init__(self, content: ConsoleRenderable) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.content, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


console = Console(soft_wrap=True, emoji=False)  # a path may contain :words: between colons
errors = Console(stderr=True, soft_wrap=True, emoji=False)
for _output in (console, errors):
    _output.push_render_hook(_Printable())


def watcher() -> Listener:
    """Progress on standard output."""
    return Bars(console) if console.is_terminal else Lines(console)


@contextmanager
def stop_message(message: Callable[[], str]) -> Iterator[None]:
    """Around a long command: Ctrl-C and SIGTERM end it with this message. Exit codes: 130 and 143."""
    with terminating_like_ctrl_c():
        try:
            yield
        except KeyboardInterrupt as stop:
            errors.print(message(), markup=False)
            raise typer.Exit(143 if isinstance(stop, Terminated) else 130) from stop
