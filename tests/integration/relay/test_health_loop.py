"""The loop of a leader that hangs shows, however well its lease is renewed by another thread."""

import threading
import time

import psycopg

from relay import Relay, RelaySettings
from relay.embedded import wait_until
from relay.events import Event, LeaseRenewed, PagePublished


def test_renewals_do_not_cover_up_a_loop_that_hangs(database: str, broker_url: str) -> None:
    hanging, go_on = threading.Event(), threading.Event()
    renewed: list[float] = []

    def observe(event: Event) -> None:
        """Runs on the relay's own threads: this one stops its loop in the middle of a page."""
        if isinstance(event, PagePublished):
            hanging.set()
            go_on.wait(30)
        if isinstance(event, LeaseRenewed) and hanging.is_set():
            renewed.append(time.monotonic())

    settings = RelaySettings(database_url=database, broker_url=broker_url, lease_ttl=0.5)
    relay = Relay(settings, observer=observe)
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    try:
        with psycopg.connect(database, autocommit=True) as client:
            client.execute("INSERT INTO outbox_message (id, task) VALUES (gen_random_uuid(), 'a.b')")
        assert hanging.wait(15)
        wait_until(lambda: len(renewed) >= 3, 15, "the lease to be renewed meanwhile")
        assert relay.beat < renewed[0]
        stood_still = relay.beat
        assert relay.registered is not None
        go_on.set()
        wait_until(lambda: relay.beat > stood_still, 15, "the loop to move again")
    finally:
        go_on.set()
        relay.stop()
        thread.join(15)
    assert not thread.is_alive()
