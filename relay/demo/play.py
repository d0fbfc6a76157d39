"""The script of the demo."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from relay.demo import ledger
from relay.demo.screen import Screen, books, next_steps
from relay.demo.stage import Stage
from relay.embedded import DeadlineExceeded

ORDERS = 3000
RATE = 250.0
_DEADLINE_SECONDS = 50.0
_LOOK_SECONDS = 0.1
_DOUBLED = 25
_DOUBLING_SECONDS = 3.0


class Play:
    def __init__(self, stage: Stage, screen: Screen, orders: int, rate: float) -> None:
        self._stage = stage
        self._screen = screen
        self._orders = orders
        self._rate = rate
        self._end = time.monotonic() + _DEADLINE_SECONDS

    def perform(self) -> bool:
        """True when the books balance."""
        self._open()
        self._wait_for_charges(0.3, "a third of the orders charged")
        self._kill_the_leader()
        self._wait_for_charges(0.6, "two thirds of the orders charged")
        self._kill_the_worker()
        self._wait(lambda: self._stage.shop_finished(), "the last order")
        placed, _ = ledger.progress(self._stage.database)
        self._screen.say(f"all orders placed: {placed:,} committed, the declined ones rolled back")
        self._wait(lambda: self._charged() >= placed, "every order charged", soft=True)
        result = ledger.balance(self._stage.database)
        self._screen.plain(books(result, self._stage.duplicates_absorbed()))
        return result.balanced

    def _open(self) -> None:
        self._screen.say(self._stage.servers)
        for name in ("relay-1", "relay-2"):
            self._stage.relay(name)
        self._stage.worker("worker-1")
        self._wait(lambda: self._stage.leader(), "a leader")
        self._screen.say(f"{self._stage.leader()} leads, the other relay stands by")
        self._wait(lambda: self._stage.worker_ready("worker-1"), "the worker")
        self._stage.shop(self._orders, self._rate)
        self._screen.say(f"the shop places {self._orders:,} orders at {self._rate:g} a second; every tenth is declined")
        self._wait(lambda: ledger.opened(self._stage.database), "the shop's first order")

    def _kill_the_leader(self) -> None:
        leader = self._stage.leader() or "relay-1"
        pid = self._stage.kill(leader)
        killed = time.monotonic()
        self._screen.say(f"kill -9 {pid}: {leader}, the leader, is dead")
        self._wait(lambda: self._stage.leader() not in (None, leader), "the standby to take over")
        taken = time.monotonic() - killed
        self._screen.say(f"{self._stage.leader()} leads after {taken:.1f} s and goes on where the position stands")
        self._double_some()

    def _double_some(self) -> None:
        doubled = 0
        end = time.monotonic() + _DOUBLING_SECONDS
        while not doubled and time.monotonic() < end:
            doubled = self._stage.double_waiting(_DOUBLED)
        self._screen.say(f"{doubled} messages waiting in Valkey are doubled by hand, as a lost reply would double them")

    def _kill_the_worker(self) -> None:
        pid = self._stage.kill("worker-1")
        self._screen.say(f"kill -9 {pid}: worker-1 and its children are dead, with messages in their hands")
        self._stage.worker("worker-2")
        self._screen.say("worker-2 starts; what worker-1 held comes back after visibility_timeout (set to 5 s here)")

    def _wait_for_charges(self, share: float, what: str) -> None:
        self._wait(lambda: self._charged() >= share * self._orders * 0.9, what)

    def _charged(self) -> int:
        placed, charged = ledger.progress(self._stage.database)
        self._screen.progress(placed, charged, round(self._orders * 0.9), self._stage.leader() or "nobody")
        return charged

    def _wait(self, seen: Callable[[], object], what: str, *, soft: bool = False) -> None:
        while not seen():
            if time.monotonic() > self._end:
                if soft:
                    return
                raise DeadlineExceeded(f"the demo waited in vain for {what}.")
            time.sleep(_LOOK_SECONDS)


def run(out: TextIO, *, orders: int = ORDERS, rate: float = RATE, external: bool = False) -> bool:
    """The whole show. True when nothing was lost and nothing doubled."""
    screen = Screen(out)
    screen.plain("outbox demo: orders are charged exactly once, whatever dies on stage\n")
    with Stage(external=external) as stage:
        balanced = Play(stage, screen, orders, rate).perform()
    screen.plain(next_steps(_program()) if balanced else "  this is a bug: please report it with the lines above\n")
    return balanced


def _program() -> str:
    """The command as typed here: `outbox` where it is on the PATH, else its place in the virtual environment."""
    beside = Path(sys.executable).with_name("outbox")
    if shutil.which("outbox") or not beside.exists():
        return "outbox"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)
