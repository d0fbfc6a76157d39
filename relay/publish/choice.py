"""The publisher that the settings ask for."""

from collections.abc import Mapping
from typing import Any

from relay.application import load_application
from relay.broker_url import Transport, transport_for
from relay.encode import Encoder
from relay.publish import Publisher
from relay.publish.amqp import AmqpPublisher
from relay.publish.kombu import KombuPublisher
from relay.publish.redis import RedisPublisher
from relay.publish.redis_client import RedisOptions
from relay.routing import AllowedTasks, DefaultQueue, Routing, patterns_of
from relay.settings import RelaySettings


def make_publisher(settings: RelaySettings) -> tuple[Publisher, Routing]:
    """Connects to nothing yet. Raises ConfigurationError."""
    application = load_application(settings.app) if settings.app else None
    inner: Routing = application or DefaultQueue(settings.default_queue)
    routing = AllowedTasks(inner, patterns_of(settings.tasks))
    url = settings.broker_url or (application.broker_url if application else "")
    ssl: bool | Mapping[str, Any] = application.ssl if application else False
    options: Mapping[str, Any] = application.transport_options if application else {}
    match transport_for(url, settings.transport, settings.i_know):
        case Transport.AMQP:
            declare = application.declare if application else None
            amqp = AmqpPublisher(url, settings.broker_timeout, routing, ssl=ssl, options=options, declare=declare)
            return amqp, routing
        case Transport.KOMBU:
            return KombuPublisher(url, settings.broker_timeout, routing, ssl=ssl, options=options), routing
        case Transport.REDIS:
            encoder = Encoder(routing.queue_for)
            return RedisPublisher(url, settings.broker_timeout, encoder, RedisOptions.of(options, ssl)), routing
