"""procrastinate: one worker, ten jobs at a time, executes jobs that do nothing. There is no broker: it is the queue.

python procrastinate_jobs.py DATABASE_URL BROKER_URL COUNT      prints one JSON line
"""

import asyncio
import json
import sys
import time

import procrastinate
import psycopg

FILL = """
INSERT INTO procrastinate_jobs (queue_name, task_name, args)
SELECT 'bench', 'bench.task', %s FROM generate_series(1, %s)"""


async def main(database_url: str, count: int) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database_url))
    ended: list[float] = []

    async def work(**_: object) -> None:
        ended.append(time.monotonic())

    app.task(name="bench.task", queue="bench")(work)
    async with app.open_async():
        with psycopg.connect(database_url, autocommit=True) as connection:
            found = connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()
            if found and found[0] is None:
                await app.schema_manager.apply_schema_async()
            connection.execute("TRUNCATE procrastinate_jobs CASCADE")
            connection.execute(FILL, [json.dumps({"order_id": 7, "note": "x" * 540}), count])
            connection.execute("VACUUM ANALYZE procrastinate_jobs")
        await app.run_worker_async(queues=["bench"], concurrency=10, wait=False, install_signal_handlers=False)
    print(json.dumps({"rate": (len(ended) - 1) / (ended[-1] - ended[0])}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
