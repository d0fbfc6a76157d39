"""A real Celery worker runs every shape of message from every publisher."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outbox.message import Message
from relay.embedded import wait_until
from relay.publish import Publisher
from relay.publish.choice import make_publisher
from relay.settings import RelaySettings
from tests.support.copies import STAMP, copy_of
from tests.support.processes import Programs, wait_for_line

LATER = datetime.now(UTC) + timedelta(hours=1)
SHAPES = [
    Message("shapes.tell"),
    Message("shapes.tell", (1, "two", None, True, 2.5, [1, [2]], {"a": {"b": []}})),
    Message("shapes.tell", (), {"order_id": 7, "nested": {"x": [1, 2, {"y": None}]}}),
    Message("shapes.tell", ("grüße ☃ 𝄞", '"\\\n\t\u2028'), {"ключ": "值"}),
    Message("shapes.tell", (2**63, -(2**100), 1e300)),
    *(Message("shapes.tell", (priority,), priority=priority) for priority in (0, 1, 5, 9)),
    Message("shapes.tell", headers={"traceparent": "00-ab-cd-01", "x-tenant": "é ☃"}),
    Message("shapes.tell", ("x" * 200_000,)),
    Message("shapes.tell", queue="other"),
    Message("shapes.tell", expires_at=LATER),
]


def publishers(url: str) -> list[Publisher]:
    return [
        make_publisher(RelaySettings(database_url="postgresql://h/d", broker_url=url, transport=transport))[0]
        for transport in ("auto", "kombu")
    ]


def run_all(programs: Programs, url: str, told: Callable[[], list[dict[str, Any]]], file: Path) -> None:
    worker = programs.worker(
        "tests.support.shapes_app",
        "--without-gossip",
        "--without-mingle",
        "--queues",
        "celery,other",
        env={"OUTBOX_BROKER_URL": url, "SHAPES_FILE": str(file)},
    )
    wait_for_line(worker, r"ready\.", deadline=30)
    for publisher in publishers(url):
        batch = [copy_of(message, plain=True) for message in SHAPES]
        assert list(publisher.publish(batch, STAMP)) == [], type(publisher)
        publisher.close()
        wait_until(lambda: len(told()) >= len(SHAPES), 30, f"every shape from {type(publisher).__name__}")
        seen = {each["id"]: each for each in told()}
        for copy, message in zip(batch, SHAPES, strict=True):
            found = seen[copy.row.id]
            assert found["args"] == json.loads(json.dumps(list(message.args))), message.task
            assert found["kwargs"] == message.kwargs
            assert found["headers"] == message.headers
            assert (found["outbox"]["epoch"], found["outbox"]["relay"]) == (STAMP.epoch, STAMP.relay)
            assert found["expires"] == (message.expires_at.isoformat() if message.expires_at else None)
        file.unlink()


@pytest.fixture
def file(programs: Programs) -> Path:
    return programs.folder / "told"


@pytest.fixture
def told(file: Path) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_worker_on_redis_runs_every_shape(
    programs: Programs, broker_url: str, told: Callable[[], list[dict[str, Any]]], file: Path
) -> None:
    run_all(programs, broker_url, told, file)


def test_a_worker_on_rabbitmq_runs_every_shape(
    programs: Programs, amqp_url: str, told: Callable[[], list[dict[str, Any]]], file: Path
) -> None:
    run_all(programs, amqp_url, told, file)
