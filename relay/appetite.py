"""How many messages are read at once: bounded by their size, not only by their number. Pure.

A page of small messages is as long as the settings allow; large ones make it short, so that memory stays bounded
whatever waits in the log. It begins small and doubles, at the start and after an outage: a broker that has just come
back is not met with the whole backlog at once.
"""

_FIRST_ROWS = 64
_GOOD_BYTES = 4_000_000


class Appetite:
    def __init__(self, most_rows: int) -> None:
        self._most = most_rows
        self.rows = min(_FIRST_ROWS, most_rows)

    def took(self, rows: int, size: int) -> None:
        """A page had so many rows of so many bytes: how long may the next one be?"""
        if not rows:
            return
        fitting = _GOOD_BYTES * rows // max(size, 1)
        self.rows = max(1, min(self._most, self.rows * 2, fitting))

    def restart(self) -> None:
        """Begin small again."""
        self.rows = min(_FIRST_ROWS, self.rows)
