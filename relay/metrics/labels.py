"""Label values that come from data are bounded: a label with a new value for ever would drown the monitoring."""

import threading

OTHER = "__other__"
MOST_QUEUES = 100
MOST_TASKS = 200


class Bounded:
    """The first so many values keep their names; all later ones share `__other__`. May be asked from any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, value: str) -> str:
        known = self._known.get(value)
        return known if known is not None else self._admit(value)

    def _admit(self, value: str) -> str:
        with self._lock:
            if len(self._known) < self._most:
                # A raw SQL writer may put anything into a name; the text format carries it, but nobody could read it.
                self._known[value] = value if value.isprintable() and len(value) <= 255 else OTHER
            return self._known.get(value, OTHER)
