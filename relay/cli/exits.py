"""Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found, 4 refused, 5 dependency unreachable, 6 finished
with findings, 130 interrupted."""

from outbox.errors import ConfigurationError, OutboxError, SchemaMismatch, Unreachable

EXIT_FAILED, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_FINDINGS = 1, 2, 3, 4, 5, 6
EXIT_INTERRUPTED = 130


def exit_code(error: OutboxError) -> int:
    match error:
        case ConfigurationError():
            return EXIT_USAGE
        case SchemaMismatch():
            return EXIT_REFUSED
        case Unreachable():
            return EXIT_UNREACHABLE
        case _:
            return EXIT_FAILED
