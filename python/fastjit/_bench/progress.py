"""A status line on a terminal, a plain line now and then on a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

LEAST_GAP_S = 10.0  # between two lines on a pipe that only say how far a stage has got


class Progress:
    """`with Progress() as progress: progress.say("timing")`.

    show: True, False, or None for "only on a terminal". On anything else than a terminal, True writes plain lines to
    standard error. rich is loaded only for a terminal.
    """

    def __init__(self, show: bool | None = None) -> None:
        terminal = sys.stderr.isatty()
        self._spins = terminal and show is not False
        self._prints = not terminal and show is True
        self._status: Any = None
        self._prefix = ""
        self._last_line = -LEAST_GAP_S

    def __enter__(self) -> Progress:
        if self._spins:
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def title(self, text: str) -> None:
        """What the following lines are about."""
        self._prefix = f"{text}: "

    def say(self, text: str, *, detail: bool = False) -> None:
        """A new stage; with `detail` only how far it has got, which a pipe hears of now and then."""
        if self._status is not None:
            self._status.update(f"{self._prefix}{text}".replace("[", r"\["))
        elif self._prints:
            now = time.monotonic()
            if detail and now - self._last_line < LEAST_GAP_S:
                return
            self._last_line = now
            print(f"fastjit: {self._prefix}{text}", file=sys.stderr, flush=True)
