"""The books of the demo: what the shop wrote against what the workers charged."""

from dataclasses import dataclass

from relay.database import Database

# shop_charge has no unique constraint: only the receipts stand between an order and a second charge.
_BALANCE = """\
SELECT count(*), coalesce(sum((charges > 0)::int), 0)::bigint, coalesce(sum((charges = 0)::int), 0)::bigint,
    coalesce(sum((charges > 1)::int), 0)::bigint,
    (SELECT count(*) FROM shop_charge c WHERE NOT EXISTS (SELECT FROM shop_order o WHERE o.id = c.order_id)),
    (SELECT count(*) FROM outbox_message)
FROM (SELECT (SELECT count(*) FROM shop_charge c WHERE c.message_id = o.message_id) AS charges
      FROM shop_order o) per_order"""

_PROGRESS = "SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM shop_charge)"


@dataclass(frozen=True, slots=True)
class Balance:
    written: int
    applied: int
    lost: int
    doubled: int
    phantom: int
    messages: int

    @property
    def balanced(self) -> bool:
        return self.written == self.applied == self.messages and not (self.lost or self.doubled or self.phantom)


def opened(connection: Database) -> bool:
    """Whether the shop has made its tables."""
    return connection.execute("SELECT to_regclass('shop_charge')").fetchone() != (None,)


def progress(connection: Database) -> tuple[int, int]:
    """Orders placed and orders charged so far."""
    placed, charged = connection.execute(_PROGRESS).fetchall()[0]
    return placed, charged


def balance(connection: Database) -> Balance:
    # Without this index the count per order would be quadratic; the shop itself has no use for it.
    connection.execute("CREATE INDEX IF NOT EXISTS shop_charge_message ON shop_charge (message_id)")
    return Balance(*connection.execute(_BALANCE).fetchall()[0])
