"""Run a handler once per message.

from consumers import Inbox, consumer

inbox = Inbox(sessionmaker(engine))

@consumer(app, inbox, name="billing.charge")
def charge(session, delivery, *, order_id): ...
"""

from consumers.delivery import Delivery
from consumers.inbox import Inbox
from consumers.task import consumer

__all__ = ["Delivery", "Inbox", "consumer"]
