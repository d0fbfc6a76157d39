"""When each message reaches the broker, as a process: BRPOP and the clock that all processes of a host share.

python -m benchmarks.arrivals BROKER_URL      prints "message id, nanoseconds" a line
"""

import json
import sys
import time
from typing import Any

import redis

from benchmarks.scene import QUEUE


def main() -> None:
    with redis.Redis.from_url(sys.argv[1]) as client:
        client.ping()
        print("ready", flush=True)
        while True:
            popped: Any = client.brpop([QUEUE], timeout=1)
            at = time.monotonic_ns()
            if popped is not None:
                print(json.loads(popped[1])["properties"]["correlation_id"], at, flush=True)


if __name__ == "__main__":
    main()
