"""A requested stop: by SIGINT, SIGTERM, or an event that the caller sets. It is never an error."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger("trucker.run")


class Stopped(Exception):
    """The project is to stop; the step in progress was not completed."""


class Signals:
    """SIGINT and SIGTERM set an event. While nothing has been created yet, they also interrupt the step in progress."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._at_once = False
        self.thread: int | None = None
        """The thread that handles the signals, where they are handled."""

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raises `Stopped` inside as soon as a signal arrives, whatever the code waits for."""
        self._at_once = True
        try:
            if self._stop.is_set():
                raise Stopped
            yield
        finally:
            self._at_once = False

    def end(self) -> None:
        """End the project as SIGTERM does. May be called from any thread."""
        if self.thread is None:
            self._stop.set()
        else:
            signal.pthread_kill(self.thread, signal.SIGTERM)

    def handle(self, number: int, _: FrameType | None) -> None:
        log.info("stopping", extra={"signal": signal.Signals(number).name})
        self._stop.set()
        if self._at_once:
            self._at_once = False
            raise Stopped


@contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[Signals]:
    """Handle the signals inside. Python allows that in the main thread only; in another one, only the event stops."""
    signals = Signals(stop)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    previous = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    signals.thread = threading.get_ident()
    try:
        yield signals
    finally:
        signals.thread = None
        for number, handler in previous.items():
            signal.signal(number, handler)
