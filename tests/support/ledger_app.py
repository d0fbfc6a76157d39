"""A Celery application whose handlers write into the ledger: `celery -A tests.support.ledger_app`."""

import json
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from uuid import uuid4

import sqlalchemy as sa
from celery import Celery
from sqlalchemy.orm import Session, sessionmaker

from consumers import Delivery, Inbox, consumer
from tests.support import ledger


class NotYet(Exception):
    """What a handler raises that is told to fail."""


def make_app(environ: Mapping[str, str]) -> Celery:
    app = Celery("ledger", broker=environ["OUTBOX_BROKER_URL"])
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=4,
        broker_transport_options={
            "visibility_timeout": float(environ.get("LEDGER_VISIBILITY_TIMEOUT", "3600")),
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
    engine = sa.create_engine(environ["OUTBOX_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1))
    timeout = timedelta(seconds=float(environ.get("LEDGER_RECEIPT_TIMEOUT", "300")))
    inbox = Inbox(sessionmaker(engine), receipt_timeout=timeout)

    @consumer(app, inbox, name="ledger.apply")
    def apply(session: Session, delivery: Delivery, *, pause: float = 0.0, failures: int = 0) -> None:
        ledger.effect(session, delivery.id, run_id=str(uuid4()))
        time.sleep(pause)
        if delivery.attempt < failures:
            raise NotYet

    @consumer(app, inbox, name="ledger.echo")
    def echo(session: Session, delivery: Delivery, *args: object, **kwargs: object) -> None:
        """Writes down what arrived."""
        told = {"args": args, "kwargs": kwargs, "headers": dict(delivery.headers)}
        session.execute(sa.text("INSERT INTO echo VALUES (:id, :told)"), {"id": delivery.id, "told": json.dumps(told)})

    @app.task(name="ledger.plain")
    def plain(*args: object, **kwargs: object) -> None:
        """An ordinary Celery task, without an inbox."""
        with engine.begin() as connection:
            told = json.dumps({"args": args, "kwargs": kwargs})
            connection.execute(sa.text("INSERT INTO echo VALUES (:id, :told)"), {"id": uuid4(), "told": told})

    return app


if "OUTBOX_BROKER_URL" in os.environ:
    app = make_app(os.environ)
