"""pgqueuer: one consumer, batches of 500, executes jobs that do nothing. There is no broker: it is the queue.

python pgqueuer_jobs.py DATABASE_URL BROKER_URL COUNT      prints one JSON line
"""

import asyncio
import json
import sys
import time

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.queries import Queries


async def main(database_url: str, count: int) -> None:
    connection = await asyncpg.connect(database_url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    if await connection.fetchval("SELECT to_regclass('pgqueuer')") is None:
        await queries.install()
    await connection.execute("TRUNCATE pgqueuer, pgqueuer_log")
    payload = json.dumps({"order_id": 7, "note": "x" * 540}).encode()
    for _ in range(count // 1000):
        await queries.enqueue(["bench"] * 1000, [payload] * 1000, [0] * 1000)
    await connection.execute("VACUUM ANALYZE pgqueuer")
    jobs = PgQueuer(driver)
    ended: list[float] = []

    async def work(_: object) -> None:
        ended.append(time.monotonic())

    jobs.entrypoint("bench")(work)
    await jobs.qm.run(batch_size=500, mode=QueueExecutionMode.drain)
    await connection.close()
    print(json.dumps({"rate": (len(ended) - 1) / (ended[-1] - ended[0])}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
