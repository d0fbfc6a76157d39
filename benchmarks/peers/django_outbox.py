"""django-celery-outbox: its relay publishes a backlog to Celery on Redis. The closest peer: it does the same job.

python django_outbox.py DATABASE_URL BROKER_URL COUNT      prints one JSON line
"""

import json
import os
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from types import ModuleType
from urllib.parse import urlsplit

import django
import redis
from django.conf import settings
from django.core.management import call_command
from django.db import connection

FILL = """
INSERT INTO celery_outbox (created_at, retries, task_id, task_name, args, kwargs, options, schema_version)
SELECT now(), 0, gen_random_uuid()::text, 'bench.task', '[]', %s,
    '{"queue": "bench"}', %s FROM generate_series(1, %s)"""


def main(database_url: str, broker_url: str, count: int) -> None:
    parts = urlsplit(database_url)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username}
    settings.configure(
        DATABASES={"default": {**database, "HOST": parts.hostname, "PORT": parts.port}},
        INSTALLED_APPS=["django_celery_outbox"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        CELERY_OUTBOX_APP="bench_application.app",
        MONITORING_METRICS_ENABLED=False,
        USE_TZ=True,
    )
    django.setup()
    from django_celery_outbox import OutboxCelery
    from django_celery_outbox.serialization import CURRENT_SCHEMA_VERSION

    sys.modules["bench_application"] = module = ModuleType("bench_application")
    module.__spec__ = ModuleSpec("bench_application", None)
    module.__dict__["app"] = OutboxCelery("bench", broker=broker_url)
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE celery_outbox")
        cursor.execute(FILL, [json.dumps({"order_id": 7, "note": "x" * 540}), CURRENT_SCHEMA_VERSION, count])
        cursor.execute("VACUUM ANALYZE celery_outbox")
    threading.Thread(target=watch, args=(broker_url, count), daemon=True).start()
    call_command("celery_outbox_relay", batch_size=500)


def watch(broker_url: str, count: int) -> None:
    """From the first message at the broker to the last, as our own relay is measured."""
    client = redis.Redis.from_url(broker_url)
    began, first = 0.0, 0
    while (seen := client.llen("bench")) < count:
        if seen and not first:
            began, first = time.monotonic(), seen
        time.sleep(0.005)
    print(json.dumps({"rate": (count - first) / (time.monotonic() - began)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
