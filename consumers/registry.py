"""What happens when a worker starts: its consumers are registered, and forked children get connections of their own."""

import sys
from typing import Any

import psycopg
from celery import signals
from celery.utils.log import get_logger
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from consumers.inbox import Inbox

logger = get_logger("outbox.consumers")
EXIT_REFUSED = 4


def register_at_worker_start(inbox: Inbox, task: str) -> None:
    """Attach to Celery's signals; the receivers live as long as the process."""

    def register(**_: Any) -> None:
        # Celery swallows what a receiver raises; a worker that never registers would go without repair, unnoticed.
        try:
            inbox.register(task)
        except DBAPIError as error:
            if isinstance(error.orig, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
                sys.stderr.write('outbox: the outbox tables are missing; run "outbox migrate", then start the worker\n')
                raise SystemExit(EXIT_REFUSED) from None
            logger.warning("consumer %s is not registered yet, the database cannot be used: %s", task, error.orig)

    def forget_inherited_connections(**_: Any) -> None:
        # A socket shared over fork would mix the protocols of two processes; the parent's stays open there.
        engine = inbox.sessions.kw.get("bind")
        if isinstance(engine, Engine):
            engine.dispose(close=False)

    signals.worker_init.connect(register, weak=False)
    signals.worker_process_init.connect(forget_inherited_connections, weak=False)
