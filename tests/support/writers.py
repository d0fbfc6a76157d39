"""Applications under test: transactions that write an intent and a message, some of them rolled back."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from outbox import Message, Outbox
from tests.support import ledger

_LOAD = """
WITH made AS (
    INSERT INTO outbox_message (id, task, kwargs)
    SELECT gen_random_uuid(), 'a.task', json_build_object('text', repeat('x', %(size)s))
    FROM generate_series(1, %(count)s) RETURNING id)
INSERT INTO ledger_intent (message_id) SELECT id FROM made
"""


def load(database_url: str, count: int, size: int = 10) -> None:
    """So many messages and their intents in one transaction, by plain SQL, which is fast."""
    with psycopg.connect(database_url) as connection:
        connection.execute(_LOAD, {"count": count, "size": size})


class Writer:
    """Writes through the public surface, as an application would."""

    def __init__(self, database_url: str, seed: int = 0) -> None:
        self.engine = sa.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://", 1))
        self._sessions = sessionmaker(self.engine)
        self._outbox = Outbox()
        self._random = random.Random(seed)

    def write(self, count: int, *, rollbacks: float = 0.1, pause: float = 0.0, failures: int = 0) -> None:
        """`count` transactions of one message each; a share of them is rolled back and must leave no trace."""
        message = Message("ledger.apply", kwargs={"pause": pause, "failures": failures})
        for _ in range(count):
            with self._sessions() as session:
                session.begin()
                added = self._outbox.add(session, message)
                ledger.intend(session, added.id)
                if self._random.random() < rollbacks:
                    session.rollback()
                else:
                    session.commit()

    def add(self, message: Message) -> str:
        with self._sessions.begin() as session:
            return str(self._outbox.add(session, message).id)

    @contextmanager
    def writing(self, *, pause: float = 0.0, every: float = 0.01) -> Iterator[None]:
        """Keeps writing five transactions `every` so often, on a thread of its own, until the block is left.

        It lives through a database that is away.
        """
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    self.write(5, pause=pause)
                except sa.exc.OperationalError:
                    stop.wait(0.05)
                stop.wait(every)

        thread = threading.Thread(target=work, name="writer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        self.engine.dispose()
