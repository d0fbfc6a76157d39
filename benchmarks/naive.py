"""The relay that people write by hand, as a process: SKIP LOCKED, `send_task` one by one, UPDATE of the batch.

python -m benchmarks.naive DATABASE_URL BROKER_URL [--confirms] [--poll SECONDS]
"""

import argparse
import time
from typing import Any

import psycopg
from celery import Celery

from benchmarks.scene import QUEUE, TASK

_CLAIM = "SELECT id, kwargs FROM naive WHERE published_at IS NULL ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED"
_MARK = "UPDATE naive SET published_at = now() WHERE id = ANY(%s)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database_url")
    parser.add_argument("broker_url")
    parser.add_argument("--confirms", action="store_true", help="RabbitMQ: wait for the broker's word on each message")
    parser.add_argument("--poll", type=float, default=0.1, help="how long it sleeps when it found nothing")
    options = parser.parse_args()
    app = Celery("bench", broker=options.broker_url)
    if options.confirms:
        app.conf.broker_transport_options = {"confirm_publish": True}
    with psycopg.connect(options.database_url, autocommit=True) as connection:
        while True:
            if not _publish_batch(app, connection):
                time.sleep(options.poll)


def _publish_batch(app: Celery, connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    with connection.transaction():
        rows = connection.execute(_CLAIM).fetchall()
        for key, kwargs in rows:
            app.send_task(TASK, kwargs=kwargs, task_id=str(key), queue=QUEUE)
        connection.execute(_MARK, [[key for key, _ in rows]])
    return len(rows)


if __name__ == "__main__":
    main()
