"""The user's Celery application: where its broker is, which queue a task goes to, how a queue is declared.

Loaded only when it is named (`--app shop.celery:app`); the relay needs nothing but a broker URL otherwise. It runs the
user's code, so whatever that raises becomes one line.
"""

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery import Celery
from celery.exceptions import QueueNotFound
from kombu import Queue

from outbox.errors import ConfigurationError
from relay.publication import Refusal
from relay.routing import Undeliverable
from relay.settings import RelaySettings

_USUAL_NAMES = ("app", "celery", "application")


class Application:
    """What the relay takes from a Celery application. A Routing, too."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    @property
    def broker_url(self) -> str:
        """Where messages are written to; several hosts as Celery lists them."""
        url = self._app.conf.broker_write_url or self._app.conf.broker_url or ""
        return url if isinstance(url, str) else ";".join(url)

    @property
    def ssl(self) -> bool | Mapping[str, Any]:
        return self._app.conf.broker_use_ssl or False

    @property
    def transport_options(self) -> Mapping[str, Any]:
        return self._app.conf.broker_transport_options or {}

    def queue_for(self, task: str, queue: str | None) -> str:
        try:
            found = self._routed(task, queue)
        except (QueueNotFound, KeyError):
            named = f"queue {queue!a}" if queue else f"the queue that task {task!a} is routed to"
            raise Undeliverable(Refusal.QUEUE, f"{named} is not among the application's task_queues") from None
        except Undeliverable:
            raise
        except Exception as error:
            # A router is the user's code; its failure must not stop the messages of other tasks.
            why = f"the application's routes fail for task {task!a}: {type(error).__name__}"
            raise Undeliverable(Refusal.QUEUE, why) from error
        kind = getattr(found.exchange, "type", None) or "direct"
        if kind != "direct":
            why = f"queue {found.name!a} hangs on a {kind} exchange; the relay publishes to queues, not to exchanges"
            raise Undeliverable(Refusal.QUEUE, why)
        return str(found.name)

    def _routed(self, task: str, queue: str | None) -> Queue:
        # As apply_async: what the message says, then what the task says, then the routes, then the default queue.
        queue = queue or self._own_queue(task)
        route = self._app.amqp.router.route({"queue": queue} if queue else {}, task, (), {})
        if route.get("exchange") and route.get("routing_key"):
            exchange = getattr(route["exchange"], "name", route["exchange"])
            why = f"task {task!a} is routed to exchange {exchange!a}; the relay publishes to queues: route it to one"
            raise Undeliverable(Refusal.QUEUE, why)
        found: Queue | str = route["queue"]
        return self._app.amqp.queues[found] if isinstance(found, str) else found

    def _own_queue(self, task: str) -> str | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated in favour of routes, and in use everywhere
            return getattr(self._app.tasks.get(task), "queue", None)

    def declare(self, queue: str, channel: Any) -> bool:
        """The queue alone, as a worker would: the default exchange reaches it by its name."""
        try:
            known: Queue = self._app.amqp.queues[queue]
        except KeyError:
            return False
        if getattr(known, "no_declare", False):
            return False
        known(channel).queue_declare()
        return True


def load_application(spec: str) -> Application:
    """`module:attribute`, or a module with an application of a usual name."""
    module_name, _, attribute = spec.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            why = f"there is no module {error.name!a}; set PYTHONPATH, or give --workdir"
        else:
            why = f"it needs the module {error.name!a}, which is not installed here"
        raise _refusal(spec, why) from None
    except Exception as error:
        raise _refusal(spec, f"importing {module_name!a} raised {type(error).__name__}") from error
    if not attribute:
        attribute = next((name for name in _USUAL_NAMES if isinstance(getattr(found, name, None), Celery)), "app")
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise _refusal(spec, f"{module_name} has no {attribute!a}")
        found = getattr(found, name)
    if not isinstance(found, Celery):
        raise _refusal(spec, f"{attribute!a} is a {type(found).__name__}, not a Celery application")
    return Application(found)


def completed(settings: RelaySettings) -> RelaySettings:
    """With the application's broker, where none is given."""
    if settings.broker_url or not settings.app:
        return settings
    url = load_application(settings.app).broker_url
    if not url:
        raise _refusal(settings.app, "it has no broker_url; set OUTBOX_BROKER_URL")
    return replace(settings, broker_url=url)


def _refusal(spec: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"app (OUTBOX_APP) {spec[:100]!a} cannot be used: {why}")
