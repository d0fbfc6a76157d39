DROP FUNCTION outbox_add, outbox_check_payload, outbox_write, outbox_cancel, outbox_batch, outbox_states, outbox_new_id;

DROP TYPE outbox_request;

DROP TABLE outbox_message, outbox_leader, outbox_window, outbox_due, outbox_key, outbox_relay, outbox_pause,
    outbox_rejected, outbox_audit, inbox_receipt, inbox_retry, inbox_claim, inbox_dead_letter, inbox_consumer;

DROP FUNCTION outbox_notify(), outbox_message_check;

DROP SEQUENCE outbox_wake;

DROP FUNCTION outbox_revision();
