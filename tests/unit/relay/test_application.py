"""What the relay takes from a Celery application, and how it refuses what is none."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import Celery
from kombu import Exchange, Queue

from outbox.errors import ConfigurationError
from relay.application import Application, completed, load_application
from relay.publication import Refusal
from relay.routing import Undeliverable
from relay.settings import RelaySettings


def by_router(name: str, *_: object, **__: object) -> dict[str, str] | None:
    if name == "broken.task":
        raise RuntimeError("secret")
    return {"queue": "routed"} if name == "routed.task" else None


@pytest.fixture
def app() -> Celery:
    made = Celery("shop", broker="amqp://user@write//", set_as_current=False)
    made.conf.update(
        task_default_queue="orders",
        task_routes=[
            by_router,
            {
                "mail.*": "mail",
                "news.*": {"queue": "news"},
                "topic.task": {"exchange": "tasks", "routing_key": "a.b"},
                "fan.task": "fan",
            },
        ],
        task_queues=[Queue("orders"), Queue("fan", Exchange("fan", "fanout"))],
    )
    return made


@pytest.mark.parametrize(
    ("task", "queue", "expected"),
    [
        ("a.task", None, "orders"),
        ("a.task", "special", "special"),
        ("mail.send", None, "mail"),
        ("mail.send", "urgent", "urgent"),
        ("news.send", None, "news"),
        ("routed.task", None, "routed"),
    ],
)
def test_the_applications_routes_decide_where_the_message_does_not(
    app: Celery, task: str, queue: str | None, expected: str
) -> None:
    assert Application(app).queue_for(task, queue) == expected


def test_the_queue_of_a_task_goes_before_the_routes(app: Celery) -> None:
    def send() -> None: ...

    app.task(name="mail.send", queue="own", shared=False)(send)
    assert Application(app).queue_for("mail.send", None) == "own"


@pytest.mark.parametrize(
    ("task", "queue", "why"),
    [
        ("topic.task", None, "task 'topic.task' is routed to exchange 'tasks'"),
        ("fan.task", None, "queue 'fan' hangs on a fanout exchange"),
        ("a.task", "fan", "queue 'fan' hangs on a fanout exchange"),
        ("broken.task", None, "the application's routes fail for task 'broken.task': RuntimeError"),
    ],
)
def test_what_is_not_a_queue_is_refused_by_name(app: Celery, task: str, queue: str | None, why: str) -> None:
    with pytest.raises(Undeliverable, match=why) as raised:
        Application(app).queue_for(task, queue)
    assert raised.value.refusal is Refusal.QUEUE
    assert "secret" not in raised.value.why


def test_an_application_that_names_its_queues_knows_no_others(app: Celery) -> None:
    app.conf.task_create_missing_queues = False
    with pytest.raises(Undeliverable, match="queue 'typo' is not among the application's task_queues"):
        Application(app).queue_for("a.task", "typo")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "spec", "why"),
    [
        (None, "shop_none:app", "there is no module 'shop_none'; set PYTHONPATH, or give --workdir"),
        (None, "shop_none.celery:app", "there is no module 'shop_none'"),
        ("import not_there_at_all", "shop_x:app", "it needs the module 'not_there_at_all'"),
        ("raise RuntimeError('secret')", "shop_x:app", "importing 'shop_x' raised RuntimeError"),
        ("", "shop_x:app", "shop_x has no 'app'"),
        ("", "shop_x", "shop_x has no 'app'"),
        ("app = 7", "shop_x:app", "'app' is a int, not a Celery application"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(module: Path, source: str | None, spec: str, why: str) -> None:
    if source is not None:
        (module / "shop_x.py").write_text(source)
    with pytest.raises(ConfigurationError, match="OUTBOX_APP") as raised:
        load_application(spec)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.fixture
def shop(app: Celery) -> Iterator[str]:
    """An importable module with the application."""
    module = ModuleType("shop_ready")
    module.__dict__["celery"] = app
    sys.modules["shop_ready"] = module
    yield "shop_ready"
    del sys.modules["shop_ready"]


@pytest.mark.parametrize("attribute", ["", ":celery"])
def test_the_applications_broker_is_taken_unless_one_is_given(shop: str, attribute: str) -> None:
    settings = RelaySettings(database_url="postgresql://h/d", app=shop + attribute)
    assert completed(settings).broker_url == "amqp://user@write//"
    given = RelaySettings(database_url="postgresql://h/d", app=shop + attribute, broker_url="redis://mine/0")
    assert completed(given).broker_url == "redis://mine/0"


def test_an_application_without_a_broker_is_refused(shop: str, app: Celery) -> None:
    app.conf.update(broker_url=None, broker_write_url=None)
    with pytest.raises(ConfigurationError, match="it has no broker_url; set OUTBOX_BROKER_URL"):
        completed(RelaySettings(database_url="postgresql://h/d", app=shop))
