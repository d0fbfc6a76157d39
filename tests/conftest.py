pytest_plugins = (
    "tests.support.processes",
    "tests.support.postgres",
    "tests.support.valkey",
    "tests.support.proxy",
)
