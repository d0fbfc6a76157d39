"""The inbox: run a handler and write its receipt in one transaction.

    begin ─▶ lock and look ─┬─ receipt exists ──▶ duplicate        (nothing runs)
                            ├─ lock not obtained ─▶ in progress    (nothing runs)
                            └─▶ handler ─▶ receipt ─▶ commit ─▶ applied
                                   │          └─ someone else's receipt ─▶ roll back ─▶ duplicate
                                   └─ raises ─▶ roll back ─▶ failed

    at any point: the database does not answer ─▶ unavailable      (nothing is counted, the broker keeps the message)

The effect and the receipt are one commit. Killed before it: neither exists and the message is delivered again. Killed
after it, before the acknowledgement: the copy finds the receipt. There is no third case.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from consumers.delivery import Delivery
from consumers.outcome import Applied, Duplicate, Failed, InProgress, Outcome, Unavailable
from consumers.statements import statements_for
from outbox import codec
from outbox.errors import ConfigurationError, HandlerMisuse, OutboxError
from outbox.statements import DEFAULT_SCHEMA

Handler = Callable[[Session], object]

_SERIALIZATION_TRIES = 5


class _AlreadyReceipted(Exception):
    """Another worker's receipt was there first: roll back everything this run wrote."""


def _require_transaction(session: Session) -> None:
    """On an AUTOCOMMIT engine effect and receipt would be two commits."""
    if getattr(session.connection().connection.driver_connection, "autocommit", False):
        raise ConfigurationError("the inbox's engine is AUTOCOMMIT: give it one with real transactions")


def _refuse_commit(session: Session) -> None:
    """Effects committed by the handler would have no receipt and come again with every copy. Savepoints are fine."""
    if not session.in_nested_transaction():
        raise HandlerMisuse("the handler called session.commit(); remove it, the receipt is committed with the effects")


class _HandlerFailed(Exception):
    """Carries the handler's own error out of the transaction, so that leaving it rolls back."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Inbox:
    """`Inbox(sessionmaker(engine))`: where receipts go. It must be the database that the handlers write to."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        *,
        schema: str = DEFAULT_SCHEMA,
        receipt_timeout: timedelta = timedelta(minutes=5),
    ) -> None:
        if not isinstance(sessions, sessionmaker):
            raise ConfigurationError(
                f"Inbox needs a sessionmaker, not {type(sessions).__name__}: Inbox(sessionmaker(engine))"
            )
        self.sessions = sessions
        self.receipt_timeout = receipt_timeout
        self._statements = statements_for(schema)
        self._names: set[str] = set()
        self._unregistered: set[str] = set()

    def claim_name(self, name: str) -> None:
        """Celery would silently keep the first of two tasks with one name."""
        if name in self._names:
            raise ConfigurationError(f"two consumers are named {name!a}: each task name has one handler; rename one")
        self._names.add(name)

    def run(self, delivery: Delivery, handler: Handler) -> Outcome:
        """Run the handler once for this message. Never raises what the handler raises: that is an outcome."""
        for remaining in reversed(range(_SERIALIZATION_TRIES)):
            try:
                return self._once(delivery, handler)
            except _HandlerFailed as failed:
                if not (_lost_race(failed.error) and remaining):
                    return Unavailable(failed.error) if _outage(failed.error) else Failed(failed.error)
            except DBAPIError as error:
                # Under REPEATABLE READ and above a lost race is an error, and the whole transaction must run again.
                if not (_lost_race(error) and remaining):
                    return Unavailable(error) if _outage(error) else Failed(error)
            except (InvalidRequestError, OutboxError) as error:
                # The handler ended the transaction that was lent to it, so there is none left for the receipt.
                return Failed(error)
            except PoolTimeout as error:
                return Unavailable(error)
        raise AssertionError("unreachable: the last try returns")

    def schedule_retry(self, delivery: Delivery, error: BaseException, delay: timedelta) -> None:
        """After a failed run: ask the relay for another copy."""
        self._plan(delivery, "failure", delivery.attempt + 1, delay, type(error).__name__)

    def schedule_check(self, delivery: Delivery) -> None:
        """Another worker has it. If that one dies a copy must come; if it finishes, the copy is a duplicate."""
        self._plan(delivery, "check", delivery.attempt, self.receipt_timeout, None)

    def register(self, task: str) -> None:
        """Tell the relay that this task writes receipts. What could not be told now is told with the next receipt."""
        self._unregistered.add(task)
        with self.sessions.begin() as session:
            # Registered in the parent of forking workers: whatever engine the session chose, this connection must not
            # stay in its pool, or all children would speak on one socket.
            session.connection().detach()
            self._execute(session, self._statements.register, task=task, receipt_timeout=self.receipt_timeout)
        self._unregistered.discard(task)

    def _once(self, delivery: Delivery, handler: Handler) -> Outcome:
        try:
            with self.sessions.begin() as session:
                _require_transaction(session)
                locked, status, received_at, began, _ = self._execute(
                    session, self._statements.lock_and_look, message_id=delivery.id, consumer=delivery.consumer
                ).one()
                if status is not None:
                    return Duplicate(status)
                if not locked:
                    return InProgress()
                result = self._handle(session, handler)
                self._write_receipt(session, delivery, received_at, began)
        except _AlreadyReceipted:
            return Duplicate("applied")
        if delivery.consumer in self._unregistered:
            self.register(delivery.consumer)
        return Applied(result)

    @staticmethod
    def _handle(session: Session, handler: Handler) -> object:
        event.listen(session, "before_commit", _refuse_commit)
        try:
            result = handler(session)
            if inspect.isawaitable(result) or inspect.isgenerator(result):
                raise HandlerMisuse("the handler did not run: it is async or a generator; write def, without yield")
            session.flush()
        except Exception as error:
            raise _HandlerFailed(error) from error
        finally:
            event.remove(session, "before_commit", _refuse_commit)
        return result

    def _write_receipt(self, session: Session, delivery: Delivery, received_at: object, began: object) -> None:
        written = self._execute(
            session,
            self._statements.receipt,
            message_id=delivery.id,
            consumer=delivery.consumer,
            body_hash=delivery.body_hash,
            published_at=delivery.published_at,
            epoch=delivery.epoch,
            relay=delivery.relay,
            received_at=received_at,
        )
        transaction = written.scalar_one_or_none()
        if transaction is None:
            raise _AlreadyReceipted
        if transaction != began:
            # A COMMIT or ROLLBACK in SQL, or on the connection beneath the session: this is another transaction.
            raise HandlerMisuse(
                "the handler ended the transaction that was lent to it; leave COMMIT and ROLLBACK to us"
            )

    def _plan(self, delivery: Delivery, kind: str, attempt: int, delay: timedelta, error: str | None) -> None:
        with self.sessions.begin() as session:
            self._execute(
                session,
                self._statements.retry,
                message_id=delivery.id,
                consumer=delivery.consumer,
                kind=kind,
                attempt=attempt,
                delay=delay,
                error=error,
            )

    @staticmethod
    def _execute(session: Session, statement: str, **parameters: Any) -> Any:
        return session.connection().exec_driver_sql(statement, parameters)


def _lost_race(error: Exception) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected)


def _outage(error: Exception) -> bool:
    """The inbox's own connection broke, or there was none to be had: says nothing about the message."""
    if not isinstance(error, DBAPIError) or not isinstance(error.orig, psycopg.Error):
        return False
    if error.connection_invalidated:
        return True
    state = error.orig.sqlstate
    if state is None:
        return isinstance(error.orig, psycopg.OperationalError | psycopg.InterfaceError)
    # Connection exceptions, shutdowns and a full server; a cancelled query or a lock timeout is the handler's own.
    return state[:2] == "08" or state in ("57P01", "57P02", "57P03", "57P04", "57P05", "53300")


def intact(delivery: Delivery, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether the arguments are those that were written; a message without a hash is taken as it is."""
    if delivery.body_hash is None:
        return True
    return codec.body_hash(delivery.consumer, args, kwargs).hex() == delivery.body_hash
