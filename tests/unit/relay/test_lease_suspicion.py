from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relay.events import DatabaseUnavailable, Event
from relay.lease import Look, Suspicion, suspect
from relay.outage import Outage
from tests.unit.outbox.payloads import repeatable

DEAD = Look(epoch=4, expires_at="noon", free=False, lock_free=True)


def test_a_free_lock_is_only_a_suspicion_until_the_grace_is_over() -> None:
    first = suspect(None, DEAD, now=10.0, grace=0.2)
    assert first == Suspicion(4, "noon", 10.2)
    assert suspect(first, DEAD, now=10.1, grace=0.2) is first
    assert not first.confirmed(10.19)
    assert first.confirmed(10.2)


def test_a_lock_that_is_held_and_a_lease_that_is_free_are_no_suspicion() -> None:
    before = suspect(None, DEAD, 10.0, 0.2)
    assert suspect(before, replace(DEAD, lock_free=False), 10.3, 0.2) is None
    assert suspect(before, replace(DEAD, free=True), 10.3, 0.2) is None


@repeatable
@given(st.sampled_from([{"expires_at": "one"}, {"epoch": 5}]), st.floats(0, 100))
def test_a_leader_that_renewed_starts_the_grace_anew(change: dict[str, object], now: float) -> None:
    before = Suspicion(4, "noon", 0.0)
    again = suspect(before, replace(DEAD, **change), now, 0.2)  # type: ignore[arg-type]
    assert again is not None
    assert not again.confirmed(now)


def told(failures: list[tuple[float, str]]) -> list[tuple[str, int]]:
    events: list[Event] = []
    now = 0.0
    outage = Outage("lease", events.append, lambda: now)
    for at, error in failures:
        now = at
        outage.failed(error)
    return [(event.error, event.failures) for event in events if isinstance(event, DatabaseUnavailable)]


def test_the_same_outage_is_told_at_once_and_then_ever_more_rarely() -> None:
    every_half_second = told([(number / 2, "refused") for number in range(600)])
    assert every_half_second[:4] == [("refused", 1), ("refused", 3), ("refused", 7), ("refused", 15)]
    assert len(every_half_second) < 12


def test_another_error_is_told_at_once() -> None:
    assert told([(0.0, "refused"), (0.1, "refused"), (0.2, "starting up")]) == [("refused", 1), ("starting up", 3)]


def test_after_a_success_the_next_outage_is_new() -> None:
    events: list[Event] = []
    outage = Outage("work", events.append, lambda: 5.0)
    outage.failed("refused")
    outage.over()
    outage.failed("refused")
    assert events == [DatabaseUnavailable("refused", "work", 1)] * 2
