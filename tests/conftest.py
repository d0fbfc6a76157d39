pytest_plugins = (
    "tests.support.processes",
    "tests.support.postgres",
    "tests.support.valkey",
    "tests.support.rabbitmq",
    "tests.support.pgbouncer",
    "tests.support.proxy",
    "tests.support.relays",
    "tests.support.promtool",
)
