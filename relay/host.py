"""One process, one relay an outbox, each on threads of its own.

    outbox a ── Relay ─ lease thread, work thread
    outbox b ── Relay ─ lease thread, work thread

With one outbox whatever ends its relay ends the process, and the supervisor decides. With several, an outbox that
cannot be served (tables missing, wrong cluster, a fault of ours) must neither stop the others nor go unnoticed: it is
logged, tried again after 1, 2, 4 ... 30 s, and the process is not ready meanwhile. If one is down when the process
is told to stop, the exit code is not 0.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import uuid4

from outbox.errors import OutboxError
from relay.daemon import Relay
from relay.database import first_line
from relay.events import (
    ConfigurationNoticed,
    DatabaseConnected,
    Event,
    LeadershipGained,
    Observer,
    OutboxFailed,
    observers,
)
from relay.logs import EventLog
from relay.monitor import Monitor
from relay.settings import RelaySettings
from relay.signals import on_signals

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0


class Host:
    """`Host(settings by outbox).run()` returns after `stop()` or SIGTERM, when every relay has handed over."""

    def __init__(
        self,
        settings: Mapping[str, RelaySettings],
        observer_for: Callable[[str], Observer] = EventLog,
        monitor: Monitor | None = None,
    ) -> None:
        self._settings = dict(settings)
        self._monitor = monitor
        self._observers = {outbox: observer_for(outbox) for outbox in settings}
        if monitor is not None:
            self._observers = {
                outbox: observers(tell, monitor.observe(outbox, self._settings[outbox]))
                for outbox, tell in self._observers.items()
            }
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._relays: dict[str, Relay] = {}
        self._failed: dict[str, str] = {}

    def stop(self) -> None:
        self._stop.set()
        if self._monitor is not None:
            self._monitor.stopping()
        with self._lock:
            relays = list(self._relays.values())
        for relay in relays:
            relay.stop()

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT drain and hand over. Call it from the main thread, before `run`."""
        on_signals(self.stop)

    def failed(self) -> dict[str, str]:
        """The outboxes that are not served, and why."""
        with self._lock:
            return dict(self._failed)

    def run(self, *, once: bool = False) -> None:
        for outbox, settings in self._settings.items():
            for notice in settings.notices():
                self._observers[outbox](ConfigurationNoticed(notice))
        if len(self._settings) == 1:
            [outbox] = self._settings
            self._serve(outbox, once)
            return
        threads = [
            threading.Thread(target=self._keep_serving, args=(outbox, once), name=f"outbox-{outbox}", daemon=True)
            for outbox in self._settings
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed := self.failed():
            raise OutboxError(f"not served when the process stopped: {', '.join(failed)}; the log says why")

    def _keep_serving(self, outbox: str, once: bool) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._serve(outbox, once)
                return
            except Exception as error:
                known = isinstance(error, OutboxError)
                why = first_line(error) if known else f"{type(error).__name__}: {first_line(error)}"
                with self._lock:
                    pause = _FIRST_PAUSE if outbox not in self._failed else min(2 * pause, _LONGEST_PAUSE)
                    self._failed[outbox] = why
                if self._monitor is not None:
                    self._monitor.unwatch(outbox)
                self._observers[outbox](OutboxFailed(why, pause))
                if once:
                    return
                self._stop.wait(pause)

    def _serve(self, outbox: str, once: bool) -> None:
        # Another holder each time: what the last one left behind is somebody else's.
        relay = Relay(replace(self._settings[outbox], holder=uuid4()), self._observer(outbox))
        with self._lock:
            self._relays[outbox] = relay
        if self._monitor is not None:
            self._monitor.watch(outbox, relay)
        if self._stop.is_set():
            relay.stop()
        relay.run(once=once)

    def _observer(self, outbox: str) -> Observer:
        tell = self._observers[outbox]

        def observe(event: Event) -> None:
            if isinstance(event, LeadershipGained | DatabaseConnected):
                with self._lock:
                    self._failed.pop(outbox, None)
            tell(event)

        return observe
