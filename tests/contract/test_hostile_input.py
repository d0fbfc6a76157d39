"""What comes from hands other than ours: URLs typed wrong, rows written by hand, headers made up, odd names."""

import contextlib
import os
import re
import signal
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from celery.app.task import Context
from click.testing import CliRunner
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from consumers.delivery import read_delivery
from outbox import migrations
from outbox.codec import encode
from outbox.errors import ConfigurationError, InvalidMessage
from outbox.ids import MessageIds
from outbox.message import RESERVED_HEADERS, Message
from relay.cli import commands
from relay.database import shown_url
from relay.encode import Encoder
from relay.publish.redis import RedisPublisher
from relay.queries import queries_for
from relay.routing import DefaultQueue
from relay.settings import RelaySettings
from tests.contract.celery_sender import CelerySender
from tests.contract.test_celery_wire import received, relay_sends, row_of, sent


def test_every_name_that_celery_or_kombu_reads_from_headers_is_reserved() -> None:
    own = {name for name in vars(Context) if not name.startswith("__")}
    assert own | {"compression", "lang", "task"} <= RESERVED_HEADERS


def test_the_function_for_other_languages_reserves_the_same_names() -> None:
    source = (migrations.folder() / "sql" / "0001_functions.up.sql").read_text(encoding="utf-8")
    (names,) = re.findall(r"part\.name = ANY \(string_to_array\(([^()]*), ' '\)\)", source)
    literals = re.findall(r"'([^']*)'", names)
    assert "".join(literals).split() == sorted(RESERVED_HEADERS)


@pytest.mark.parametrize("texts", [{"body": '[["é"], {}'.encode()}, {"headers": '{"a":"é"}'}, {"hashed": False}])
def test_a_row_written_by_hand_in_utf8_is_published(texts: dict[str, Any]) -> None:
    sent(row_of(Message("a.task"))._replace(**texts))


def test_the_tasks_own_ignore_result_counts() -> None:
    """Celery takes the task's setting only where the message has none; False would override True."""
    request = received(CelerySender(), relay_sends(Message("quiet")))
    assert request.request_dict["ignore_result"] is None


@pytest.mark.parametrize("value", [MappingProxyType({"a": 1}), 10**5000], ids=["mapping", "digits"])
def test_what_json_cannot_write_is_an_invalid_message(value: object) -> None:
    with pytest.raises(InvalidMessage, match=r"kwargs\.x"):
        encode({"x": value}, "kwargs")


def test_a_key_in_an_error_is_short_and_printable() -> None:
    with pytest.raises(InvalidMessage) as refused:
        encode({"k\n\x1b" + "x" * 100_000: {1}}, "kwargs")
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("ours", [{"published_at": "garbage"}, {"relay": "a\x00b"}, {"relay": "\ud800"}])
def test_a_header_that_postgresql_would_refuse_is_not_taken(ours: dict[str, object]) -> None:
    found = read_delivery(str(uuid4()), "a.task", {"outbox": ours})
    assert (found.published_at, found.relay) == (None, None)


@pytest.mark.parametrize(("task_id", "headers"), [(5, None), (str(uuid4()), "boom"), (str(uuid4()), [1])])
def test_hostile_ids_and_headers_are_an_invalid_message_at_most(task_id: object, headers: object) -> None:
    with contextlib.suppress(InvalidMessage):
        assert read_delivery(task_id, "a.task", headers).from_outbox is False


def test_a_fork_while_another_thread_makes_an_id_does_not_hang_the_child() -> None:
    ids = MessageIds()
    ids._lock.acquire()
    if not (child := os.fork()):
        signal.alarm(2)
        ids.new()
        os._exit(0)
    assert os.WIFEXITED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("schema", ["100%", "a%b", "%s"])
def test_a_percent_sign_in_the_schema_reaches_postgresql(schema: str) -> None:
    query = PostgresQuery(Transformer())
    query.convert(queries_for(schema).renew, {"ttl": 1, "epoch": 1, "holder": "h", "lock": True})
    assert f'"{schema}".outbox_leader' in query.query.decode()


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:123/hunter2@h/d", "postgresql://u:1?hunter2@h/d", "host=h password=hunter2", "u:hunter2@h/d"],
)
def test_a_malformed_url_shows_no_password(url: str) -> None:
    assert shown_url(url) == "(malformed URL)"


def test_an_ipv6_host_keeps_its_brackets() -> None:
    assert shown_url("postgresql://u:p@[::1]:5432/d") == "postgresql://[::1]:5432/d"


@pytest.mark.parametrize("url", ["redis://:hunter2/x@h:6379/0", "redis://:hunter2?x@h/0"])
def test_a_malformed_broker_url_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RedisPublisher(url, 1.0, Encoder(DefaultQueue("celery").queue_for))
    assert "hunter2" not in str(refused.value)


def test_a_broker_url_without_scheme_shows_no_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        RelaySettings(database_url="postgresql://h/d", broker_url="hunter2@host")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("command", ["status", "migrate"])
@pytest.mark.parametrize("url", ["[::1/db", "127.0.0.1:abc/db", "127.0.0.1:1/db?bogus=1"])
def test_a_malformed_database_url_is_a_configuration_error(command: str, url: str) -> None:
    result = CliRunner().invoke(commands, [command], env={"OUTBOX_DATABASE_URL": "postgresql://u:hunter2@" + url})
    assert (result.exit_code, "hunter2" in result.output + str(result.exception)) == (2, False)
