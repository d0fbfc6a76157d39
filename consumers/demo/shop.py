"""A small shop. Placing an order and asking for its payment is one transaction; so is charging it and the receipt."""

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from celery import Celery
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from consumers import Delivery, Inbox, consumer
from outbox import Message, Outbox

HANDLER_SECONDS = 0.004
"""How long charging takes: something for the kill to hit."""


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[UUID | None]


class Charge(Base):
    """One row a charge. Nothing is unique here on purpose: a doubled charge would be seen."""

    __tablename__ = "shop_charge"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    message_id: Mapped[UUID]
    worker: Mapped[int]


class CardDeclined(Exception):
    """Rolls the order back, message and all."""


def place_order(session: Session, outbox: Outbox, *, declined: bool) -> None:
    """The caller's transaction holds the order and the message, or neither."""
    order = Order()
    session.add(order)
    session.flush()
    added = outbox.add(session, Message("shop.charge", kwargs={"order_id": order.id}))
    order.message_id = added.id
    if declined:
        raise CardDeclined


def make_engine(environ: Mapping[str, str]) -> Engine:
    return create_engine(environ["OUTBOX_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1))


def make_app(environ: Mapping[str, str]) -> Celery:
    """The Celery application with its one consumer."""
    app = Celery("shop", broker=environ["OUTBOX_BROKER_URL"])
    app.conf.update(
        worker_prefetch_multiplier=4,
        broker_connection_retry_on_startup=True,
        # Redis gives a killed worker's messages back only after this time; an hour would outlast the demo.
        broker_transport_options={
            "visibility_timeout": 5,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    )
    inbox = Inbox(sessionmaker(make_engine(environ)), receipt_timeout=timedelta(seconds=5))

    @consumer(app, inbox, name="shop.charge")
    def charge(session: Session, delivery: Delivery, *, order_id: int) -> None:
        time.sleep(HANDLER_SECONDS)
        session.add(Charge(order_id=order_id, message_id=delivery.id, worker=os.getpid()))

    return app
