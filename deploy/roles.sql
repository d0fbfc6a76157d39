-- The roles of one outbox, with exactly the rights each needs. Run it after `outbox migrate`, as the owner of the tables
-- or a superuser, in the schema of the tables (SET search_path first if that is not public). Safe to run again.
--
-- They cannot log in: grant them to the accounts that do, e.g. GRANT outbox_relay TO relay_login.
--   outbox_owner     owns the tables: `outbox migrate`, and a relay's one start with --adopt. Nothing else.
--   outbox_writer    the application: adds messages, reads none
--   outbox_relay     the relay
--   outbox_consumer  Celery workers with @consumer tasks; grant it beside the rights on their own tables
--   outbox_viewer    `outbox status`; sees no payload, result or traceback
--   outbox_operator  viewer, and pause, resume, cancel
-- For `outbox status` to see the open transactions of others: GRANT pg_read_all_stats TO outbox_viewer.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['outbox_owner', 'outbox_writer', 'outbox_relay', 'outbox_consumer', 'outbox_viewer',
        'outbox_operator']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), name);
    END LOOP;
    -- Functions of the owner run with its rights: nobody else may put anything beside them.
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    EXECUTE format('GRANT CREATE ON SCHEMA %I TO outbox_owner', current_schema());
END $$;

-- Writer: not one column that decides about order or publication, and no SELECT.
GRANT INSERT (id, task, queue, priority, args, kwargs, headers, body_hash, batch_id, expires_at) ON outbox_message
    TO outbox_writer;
GRANT USAGE ON SEQUENCE outbox_message_seq, outbox_wake TO outbox_writer;
GRANT EXECUTE ON FUNCTION outbox_write(json), outbox_add, outbox_cancel(uuid), outbox_states(uuid[]), outbox_batch(uuid)
    TO outbox_writer;
GRANT SELECT ON outbox_rejected TO outbox_writer;

-- Relay: reads and prunes messages, never changes one; never owns, never creates.
GRANT SELECT, DELETE ON outbox_message, outbox_key, outbox_rejected, inbox_claim TO outbox_relay;
GRANT SELECT, UPDATE ON outbox_leader TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_window, outbox_due, outbox_relay TO outbox_relay;
GRANT SELECT, INSERT, DELETE ON inbox_receipt, inbox_dead_letter, outbox_audit TO outbox_relay;
GRANT SELECT, DELETE ON inbox_retry, outbox_pause TO outbox_relay;
GRANT SELECT ON inbox_consumer, outbox_message_seq TO outbox_relay;
GRANT SELECT, UPDATE ON SEQUENCE outbox_wake TO outbox_relay;

-- Consumer: writes its receipts and can take none back; sees no message of the outbox.
GRANT SELECT, INSERT ON inbox_receipt, inbox_dead_letter TO outbox_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON inbox_retry, inbox_claim TO outbox_consumer;
GRANT SELECT, INSERT, UPDATE ON inbox_consumer TO outbox_consumer;

-- Viewer: everything but what people wrote into their messages.
GRANT SELECT (id, xid, seq, task, queue, priority, ordering_key, key_prev, unique_key, batch_id, held, created_at,
    expires_at) ON outbox_message TO outbox_viewer, outbox_operator;
GRANT SELECT (message_id, consumer, status, published_at, epoch, relay, received_at, applied_at) ON inbox_receipt
    TO outbox_viewer, outbox_operator;
GRANT SELECT (message_id, consumer, category, error_class, error_group, attempts, died_at) ON inbox_dead_letter
    TO outbox_viewer, outbox_operator;
GRANT SELECT ON outbox_leader, outbox_window, outbox_due, outbox_relay, outbox_pause, outbox_rejected, outbox_audit,
    inbox_consumer, inbox_retry, outbox_wake TO outbox_viewer, outbox_operator;
GRANT EXECUTE ON FUNCTION outbox_states(uuid[]), outbox_batch(uuid) TO outbox_viewer, outbox_operator;

-- Operator: an action and its line in the audit; no line of the audit is ever changed.
GRANT INSERT, UPDATE, DELETE ON outbox_pause TO outbox_operator;
GRANT INSERT ON outbox_audit TO outbox_operator;
GRANT EXECUTE ON FUNCTION outbox_cancel(uuid) TO outbox_operator;
