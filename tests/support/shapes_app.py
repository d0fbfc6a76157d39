"""A plain Celery application that writes down what it was called with: `celery -A tests.support.shapes_app`."""

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("shapes", broker=os.environ.get("OUTBOX_BROKER_URL"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_queue_max_priority=9 if os.environ.get("OUTBOX_BROKER_URL", "").startswith("amqp") else None,
)


@app.task(name="shapes.tell", bind=True)
def tell(self: Any, /, *args: object, **kwargs: object) -> None:
    request = self.request
    told = {
        "id": request.id,
        "args": args,
        "kwargs": kwargs,
        "headers": {name: value for name, value in (request.headers or {}).items() if name != "outbox"},
        "outbox": (request.headers or {}).get("outbox"),
        "expires": request.expires,
    }
    with Path(os.environ["SHAPES_FILE"]).open("a") as file:
        file.write(json.dumps(told) + "\n")
