"""Where a message goes, and whether it may go at all."""

import pytest

from relay.publication import Refusal
from relay.routing import AllowedTasks, DefaultQueue, Undeliverable, allowed, patterns_of


def test_without_a_queue_the_default_one() -> None:
    assert DefaultQueue("orders").queue_for("a.task", None) == "orders"
    assert DefaultQueue("orders").queue_for("a.task", "mail") == "mail"


@pytest.mark.parametrize(
    ("task", "patterns", "expected"),
    [
        ("billing.charge", (), True),
        ("billing.charge", ("billing.*",), True),
        ("billing.charge", ("mail.send", "billing.charge"), True),
        ("billing.charge.twice", ("billing.charge",), False),
        ("Billing.charge", ("billing.*",), False),
        ("mail.send", ("billing.*",), False),
    ],
)
def test_names_and_patterns_allow_tasks(task: str, patterns: tuple[str, ...], expected: bool) -> None:
    assert allowed(task, patterns) is expected


@pytest.mark.parametrize("task", ["celery.map", "celery.chord", "celery.backend_cleanup"])
@pytest.mark.parametrize("patterns", [(), ("*",), ("celery.*",)])
def test_celerys_own_tasks_are_never_allowed(task: str, patterns: tuple[str, ...]) -> None:
    with pytest.raises(Undeliverable, match="Celery's own") as raised:
        AllowedTasks(DefaultQueue("celery"), patterns).queue_for(task, None)
    assert raised.value.refusal is Refusal.MESSAGE


def test_a_task_that_is_not_listed_is_a_dead_letter() -> None:
    with pytest.raises(Undeliverable, match=r"task 'mail\.send' is not in OUTBOX_TASKS") as raised:
        AllowedTasks(DefaultQueue("celery"), ("billing.*",)).queue_for("mail.send", "mail")
    assert raised.value.refusal is Refusal.MESSAGE


def test_the_setting_is_a_list_with_commas() -> None:
    assert patterns_of(" billing.*, mail.send,, ") == ("billing.*", "mail.send")
    assert patterns_of("") == ()
