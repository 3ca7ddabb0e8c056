"""A status line on a terminal, nothing on a pipe."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Progress:
    """`with Progress() as progress: progress.say("timing")`; rich is loaded only where somebody can see it."""

    def __init__(self, show: bool | None = None) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._status: Any = None
        self._prefix = ""

    def __enter__(self) -> Progress:
        if self._show:
            try:
                from rich.console import Console
            except ImportError:
                self._show = False
                return self
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

    def say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(f"{self._prefix}{text}".replace("[", r"\["))
