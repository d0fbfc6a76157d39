import math
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox import InvalidMessage, Message
from outbox.schedule import LONGEST, moment, seconds
from tests.unit.outbox.payloads import repeatable

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
CENTURY = LONGEST.total_seconds()
LENGTHS = ("delay", "expires_in", "dedup_window")
MOMENTS = ("due_at", "expires_at")


class Nowhere(tzinfo):
    """A time zone that does not know its offset: the datetime is naive in all but looks."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


def refusal(**options: Any) -> str:
    if "dedup_window" in options:
        options["dedup_key"] = "a"
    with pytest.raises(InvalidMessage) as refused:
        Message("a", **options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (timedelta(minutes=1, microseconds=1), 60.000001),
        (90, 90.0),
        (1.5, 1.5),
        (0, 0.0),
        (-5, -5.0),
        (timedelta(days=-1), -86400.0),
        (LONGEST, CENTURY),
        (CENTURY, CENTURY),
        (-LONGEST, -CENTURY),
    ],
)
def test_a_length_is_a_timedelta_or_seconds(given: timedelta | float, expected: float) -> None:
    assert seconds("delay", given) == expected
    assert type(seconds("delay", given)) is float


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1e300, "1e+300"),
        (10**400, "1" + "0" * 56 + "..."),
        (CENTURY + 1, "3153600001.0"),
        (-CENTURY - 1, "-3153600001.0"),
        (timedelta.max, repr(timedelta.max)[:57] + "..."),
        (timedelta.min, "datetime.timedelta(days=-999999999)"),
        (LONGEST + timedelta(microseconds=1), "datetime.timedelta(days=36500, microseconds=1)"),
    ],
)
def test_a_length_beyond_a_century_is_a_slip(name: str, given: object, shown: str) -> None:
    assert refusal(**{name: given}) == f"{name} {shown} is longer than a century; is the unit wrong?"


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("given", [True, False, "5", Decimal(5), NOW, [5], b"5"])
def test_a_length_is_nothing_else(name: str, given: object) -> None:
    kind = type(given).__name__
    assert refusal(**{name: given}) == f"{name} must be a timedelta or a number of seconds, not {kind}"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("expires_in", "expires_in must be longer than nothing: the message would never run"),
        ("dedup_window", "dedup_window must be longer than nothing; leave it out to remember the key with the message"),
    ],
)
@pytest.mark.parametrize("given", [0, 0.0, -1, timedelta(0), timedelta(microseconds=-1)])
def test_nothing_is_too_short(name: str, why: str, given: object) -> None:
    assert refusal(**{name: given}) == why
    shortest: dict[str, Any] = {name: timedelta(microseconds=1)}
    assert getattr(Message("a", dedup_key="a", **shortest), name)


@pytest.mark.parametrize("given", [0, -1, timedelta(days=-100)])
def test_a_delay_that_is_over_means_now(given: timedelta | float) -> None:
    assert Message("a", delay=given).delay == given


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("given", [NOW.replace(tzinfo=None), NOW.replace(tzinfo=Nowhere())])
def test_a_moment_without_a_time_zone_is_refused(name: str, given: datetime) -> None:
    assert refusal(**{name: given}) == (
        f"{name} has no time zone: which moment is it? Use datetime.now(UTC) or replace(tzinfo=...)"
    )


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("given", ["2030-01-01T00:00:00Z", 1_900_000_000, NOW.date(), True, timedelta(1)])
def test_a_moment_is_a_datetime(name: str, given: object) -> None:
    assert refusal(**{name: given}) == f"{name} must be a datetime with a time zone, not {type(given).__name__}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (NOW, NOW),
        (NOW.astimezone(ZoneInfo("Asia/Kolkata")), NOW),
        (datetime(2030, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")), datetime(2030, 7, 1, 10, tzinfo=UTC)),
        (datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
        (datetime.min.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_a_moment_is_kept_in_utc(given: datetime, expected: datetime) -> None:
    assert moment("due_at", given) == expected
    assert moment("due_at", given).tzinfo is UTC


@pytest.mark.parametrize("edge", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
@pytest.mark.parametrize("hours", [-23, -12, 0, 14, 23])
def test_the_ends_of_the_calendar_do_not_overflow(edge: datetime, hours: int) -> None:
    """With an offset the moment may lie in year 0 or 10000; a day more or less does not matter there."""
    given = edge.replace(tzinfo=timezone(timedelta(hours=hours)))
    found = moment("due_at", given)
    assert found.tzinfo is UTC
    assert abs(found - edge) <= timedelta(days=1)
    assert Message("a", due_at=given).due_at == given


@repeatable
@given(st.datetimes(timezones=st.timezones()))
def test_any_aware_datetime_is_a_moment(given: datetime) -> None:
    found = moment("due_at", given)
    assert found.tzinfo is UTC
    assert found.isoformat()


@repeatable
@given(st.floats() | st.integers() | st.timedeltas() | st.none() | st.text())
def test_whatever_is_given_is_a_length_or_an_invalid_message(given: object) -> None:
    try:
        found = seconds("delay", given)
    except InvalidMessage:
        return
    assert abs(found) <= CENTURY


@pytest.mark.parametrize("expires", [NOW, NOW - timedelta(1), NOW.astimezone(ZoneInfo("Asia/Tokyo"))])
def test_a_message_that_expires_before_it_is_due_would_never_run(expires: datetime) -> None:
    assert refusal(due_at=NOW, expires_at=expires) == (
        "expires_at is not after due_at: the message would never run; expire it later"
    )
    assert Message("a", due_at=NOW, expires_at=NOW + timedelta(microseconds=1)).due_at == NOW


@pytest.mark.parametrize(
    ("delay", "expires_in"), [(5, 5), (6, 5), (timedelta(minutes=1), 60), (60.5, timedelta(0, 60))]
)
def test_a_delay_beyond_the_expiry_would_never_run(delay: object, expires_in: object) -> None:
    assert refusal(delay=delay, expires_in=expires_in) == (
        "expires_in is not longer than delay: the message would never run; expire it later"
    )


def test_times_of_two_kinds_are_compared_by_the_database() -> None:
    """Only its clock knows what `now` is."""
    assert Message("a", delay=5, expires_at=NOW).delay == 5
    assert Message("a", due_at=NOW, expires_in=5).expires_in == 5
    assert Message("a", expires_at=datetime(1990, 1, 1, tzinfo=UTC)).expires_at is not None


@pytest.mark.parametrize(
    ("options", "both"),
    [
        ({"due_at": NOW, "delay": 5}, "due_at or delay"),
        ({"due_at": NOW, "delay": 0}, "due_at or delay"),
        ({"expires_at": NOW, "expires_in": 5}, "expires_at or expires_in"),
    ],
)
def test_one_thing_is_said_in_one_way(options: dict[str, object], both: str) -> None:
    assert refusal(**options) == f"give {both}, not both: they say the same in two ways"
