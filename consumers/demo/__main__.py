"""`python -m consumers.demo ORDERS RATE`: place orders at a steady rate; every tenth card is declined."""

import contextlib
import os
import sys
import time

from sqlalchemy.orm import sessionmaker

from consumers.demo.shop import Base, CardDeclined, make_engine, place_order
from outbox import Outbox


def place_orders(orders: int, rate: float) -> int:
    """Returns how many were placed; the others were rolled back and must leave no trace."""
    engine = make_engine(os.environ)
    Base.metadata.create_all(engine)
    sessions = sessionmaker(engine)
    outbox = Outbox()
    started, placed = time.monotonic(), 0
    for number in range(orders):
        with contextlib.suppress(CardDeclined), sessions.begin() as session:
            place_order(session, outbox, declined=number % 10 == 9)
            placed += 1
        ahead = started + (number + 1) / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    return placed


def main() -> None:
    placed = place_orders(int(sys.argv[1]), float(sys.argv[2]))
    sys.stdout.write(f"placed {placed}\n")


main()
