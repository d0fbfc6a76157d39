"""A good row of each table, as SQL expressions: the columns that have no default, and those a CHECK looks at."""

ID = "'00000000-0000-7000-8000-000000000001'"
OTHER = "'00000000-0000-7000-8000-000000000002'"
HASH = "decode(repeat('ab', 32), 'hex')"
NOW = "now()"

GOOD: dict[str, dict[str, str]] = {
    "outbox_message": {
        "id": ID,
        "task": "'billing.charge'",
        "queue": "'mail'",
        "args": "'[1]'",
        "kwargs": """'{"order_id": 7}'""",
        "headers": """'{"tenant": "x"}'""",
        "body_hash": HASH,
        "ordering_key": "'order:7'",
        "key_prev": OTHER,
        "unique_key": "'charge:7'",
    },
    "outbox_leader": {"singleton": "true", "holder": ID, "prev": "'3:3:'", "system_id": "1", "reconciled": "'3:3:'"},
    "outbox_window": {
        "window_no": "1",
        "from_snapshot": "'3:3:'",
        "to_snapshot": "'3:9:5'",
        "last_seq": "1",
        "epoch": "1",
        "relay": "'one'",
    },
    "outbox_due": {"message_id": ID, "due_at": NOW, "reason": "'scheduled'"},
    "outbox_key": {"kind": "'dedup'", "key": "'charge:7'", "message_id": ID, "body_hash": HASH},
    "outbox_relay": {"holder": ID, "name": "'one'", "version": "'1'"},
    "outbox_pause": {"queue": "'*'", "paused_by": "'ann'", "why": "'upgrade'"},
    "outbox_rejected": {"unique_key": "'charge:7'", "live_id": ID},
    "outbox_audit": {"who": "'ann'", "action": "'replay'"},
    "inbox_receipt": {"message_id": ID, "consumer": "'billing.charge'", "status": "'applied'", "body_hash": HASH},
    "inbox_retry": {
        "message_id": ID,
        "consumer": "'billing.charge'",
        "kind": "'early'",
        "due_at": NOW,
        "waits_for": OTHER,
    },
    "inbox_claim": {"message_id": ID, "consumer": "'billing.charge'", "holder": OTHER, "expires_at": NOW},
    "inbox_dead_letter": {
        "message_id": ID,
        "consumer": "'billing.charge'",
        "category": "'dead_letter'",
        "error_class": "'ValueError'",
        "error": "'no'",
        "error_group": "'ValueError'",
        "message": "'{}'",
    },
    "inbox_consumer": {"task": "'billing.charge'", "receipt_timeout": "'30 s'"},
}
