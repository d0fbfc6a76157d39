DROP TABLE outbox_message, outbox_leader, outbox_window, outbox_due, outbox_key, outbox_relay, outbox_pause,
    outbox_rejected, outbox_audit, inbox_receipt, inbox_retry, inbox_claim, inbox_dead_letter, inbox_consumer;

DROP FUNCTION outbox_notify();

DROP SEQUENCE outbox_wake;

DROP FUNCTION outbox_revision();
