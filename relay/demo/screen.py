"""What the audience sees: one moving line on a terminal, plain lines everywhere else."""

import shutil
import time
from typing import TextIO

from relay.demo.ledger import Balance

_BAR = 20
_PLAIN_EVERY_SECONDS = 3.0


class Screen:
    def __init__(self, out: TextIO, *, live: bool | None = None) -> None:
        self._out = out
        self._live = out.isatty() if live is None else live
        self._started = time.monotonic()
        self._next_plain = 0.0
        self._moving = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        self._write(f"{time.monotonic() - self._started:5.1f}s  {text}\n")

    def plain(self, text: str = "") -> None:
        self._clear()
        self._write(text + "\n")

    def progress(self, placed: int, charged: int, total: int, leader: str) -> None:
        if self._live:
            filled = round(_BAR * charged / max(total, 1))
            bar = "█" * filled + "░" * (_BAR - filled)
            line = f"{'':6}  {bar} {charged:,} of {total:,} charged, {placed:,} placed; {leader} leads"
            # A line that wraps cannot be overwritten: each frame would leave a torn one behind.
            self._write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
            self._moving = True
        elif time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + _PLAIN_EVERY_SECONDS
            self.say(f"{placed:,} orders placed, {charged:,} charged; leader {leader}")

    def _clear(self) -> None:
        if self._moving:
            self._write("\r\x1b[K")
            self._moving = False

    def _write(self, text: str) -> None:
        # A terminal in the C locale cannot show the bar; the show must go on.
        encoding = self._out.encoding or "ascii"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()


def books(balance: Balance, absorbed: int) -> str:
    verdict = "balanced" if balance.balanced else "DOES NOT BALANCE"
    return f"""
  ledger: {verdict}
    orders written          {balance.written:>7,}   each with its message, in one transaction
    charges applied         {balance.applied:>7,}   each with its receipt, in one transaction
    duplicates absorbed     {absorbed:>7,}   copies that arrived and did nothing
    lost                    {balance.lost:>7,}
    doubled                 {balance.doubled:>7,}
    from rolled-back orders {balance.phantom:>7,}
"""


def next_steps(program: str) -> str:
    """What to do after the show; `program` is how this reader starts the command line."""
    return f"""\
  try next:
    {"make test":<24}every guarantee against real servers, some of them killed
    {program + " --help":<24}migrate, relay, status
    {"README.md":<24}put it into your own application in five minutes
"""
