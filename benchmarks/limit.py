"""Variadic LPUSH of ready bytes by redis-py, as a process: nothing can be faster without another client.

python -m benchmarks.limit BROKER_URL MESSAGE_BYTES COUNT
"""

import sys
import time

import redis

from benchmarks.scene import QUEUE

# As the relay cuts its commands: 500 messages, but not over about 1 MB.
_MOST_MESSAGES = 500
_MOST_BYTES = 1_000_000


def main() -> None:
    url, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chunk = max(1, min(_MOST_MESSAGES, _MOST_BYTES // size))
    # Different bytes in every place: one small object pushed again and again would never leave the cache.
    ready = [(b"%012d" % number + b"x" * size)[:size] for number in range(chunk * 8)]
    with redis.Redis.from_url(url) as client:
        client.ping()
        for start in range(0, count, chunk):
            at = start % len(ready)
            client.lpush(QUEUE, *ready[at : at + min(chunk, count - start)])
    time.sleep(60)  # the harness ends it; its last figures are still to be read


if __name__ == "__main__":
    main()
