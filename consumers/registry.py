"""What happens when a worker starts: its consumers are registered, and forked children get connections of their own."""

from typing import Any

from celery import signals
from sqlalchemy import Engine

from consumers.inbox import Inbox


def register_at_worker_start(inbox: Inbox, task: str) -> None:
    """Attach to Celery's signals; the receivers live as long as the process."""

    def register(**_: Any) -> None:
        inbox.register(task)

    def forget_inherited_connections(**_: Any) -> None:
        # A socket shared over fork would mix the protocols of two processes; the parent's stays open there.
        engine = inbox.sessions.kw.get("bind")
        if isinstance(engine, Engine):
            engine.dispose(close=False)

    signals.worker_init.connect(register, weak=False)
    signals.worker_process_init.connect(forget_inherited_connections, weak=False)
