"""Alive is who moves, ready is who is registered; neither asks a server."""

import pytest

from relay.health import Vitals, alive, patience, ready


def vitals(**changed: object) -> Vitals:
    values: dict[str, object] = {"outbox": "shop", "moved": 0.1, "registered": 0.5, "patience": 25.0}
    return Vitals(**{**values, **changed})  # type: ignore[arg-type]


def test_a_relay_that_moves_and_is_registered_is_alive_and_ready() -> None:
    assert alive([vitals()]).good
    assert ready([vitals()]).good


def test_a_loop_that_stands_still_is_not_alive_and_is_named() -> None:
    verdict = alive([vitals(outbox="a"), vitals(outbox="b", moved=26.0)])
    assert not verdict.good
    assert verdict.reason == "outbox b: the relay's loop has not moved for 26 s (limit 25 s)"


def test_a_relay_that_has_not_begun_is_alive_and_not_ready() -> None:
    starting = vitals(moved=None, registered=None)
    assert alive([starting]).good
    assert ready([starting]).reason == "outbox shop: not yet registered in the database"


def test_a_relay_that_lost_the_database_is_alive_and_not_ready_and_says_why() -> None:
    lost = vitals(registered=11.0, trouble="connection refused")
    assert alive([lost]).good
    assert ready([lost]).reason == "outbox shop: not for 11 s registered in the database: connection refused"


@pytest.mark.parametrize(("ttl", "timeout"), [(0.5, 0.1), (3.0, 5.0), (60.0, 5.0), (3.0, 60.0)])
def test_patience_outlasts_a_lease_and_a_broker_that_hangs(ttl: float, timeout: float) -> None:
    assert patience(ttl, timeout) >= max(10.0, 3 * ttl, 2 * timeout + 5.2)
