"""A term taken by force, for tests that drive one part of the relay without the thread that renews leases."""

import uuid

import psycopg

from relay.lease import Term


def take_lease(url: str) -> Term:
    """Whoever holds the lease loses it; this term is trusted for ever."""
    holder = uuid.uuid4()
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "UPDATE outbox_leader SET epoch = epoch + 1, holder = %s RETURNING epoch", [holder]
        ).fetchone()
    assert row is not None
    return Term(row[0], holder, trusted_until=float("inf"))
