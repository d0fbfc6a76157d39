-- The tables of the outbox and the inbox, in the first schema of search_path.
-- A statement ends at a semicolon before an empty line. No statement names a schema: the runner pins
-- search_path, and everything that must outlive it (defaults, triggers) is bound to object ids here.

CREATE FUNCTION outbox_revision() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 'outbox_0001' $$;

COMMENT ON FUNCTION outbox_revision() IS
    'the schema revision in force, whoever ran the migration; relay and CLI compare it with their own';

-- CACHE 1: a session that pre-fetches numbers would hand out a low seq after a higher one had committed.
CREATE SEQUENCE outbox_message_seq AS bigint CACHE 1;

-- All rules for a message in one function: PostgreSQL reads and plans every CHECK expression anew for every INSERT,
-- about 1 us each, while a function is planned once a session (14 constraints 23 us, this one 4). It names the broken
-- rule as the violated constraint, says what to do, and shows nothing of the row: the usual DETAIL has the payload.
CREATE FUNCTION outbox_message_check(
    id uuid, task text, queue text, priority smallint, args json, kwargs json, headers json, body_hash bytea,
    ordering_key text, key_prev uuid, unique_key text, held boolean, expires_at timestamptz
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rule text := CASE
        WHEN task !~ '^[A-Za-z_][A-Za-z0-9_.:-]*$' OR length(task) > 255 THEN 'task'
        WHEN task LIKE 'celery.%' THEN 'task_celery'
        WHEN queue !~ '^[A-Za-z0-9_.:@/#-]+$' OR length(queue) > 255 THEN 'queue'
        WHEN queue ~ '^(unacked|_kombu)' THEN 'queue_kombu'
        WHEN priority NOT BETWEEN 0 AND 9 THEN 'priority'
        WHEN json_typeof(args) <> 'array' THEN 'args'
        WHEN json_typeof(kwargs) <> 'object' THEN 'kwargs'
        WHEN json_typeof(headers) <> 'object' THEN 'headers'
        WHEN octet_length(body_hash) <> 32 THEN 'body_hash'
        WHEN length(ordering_key) NOT BETWEEN 1 AND 255 THEN 'ordering_key'
        WHEN length(unique_key) NOT BETWEEN 1 AND 255 THEN 'unique_key'
        WHEN key_prev IS NOT NULL AND (ordering_key IS NULL OR key_prev = id) THEN 'key_prev'
        WHEN NOT isfinite(expires_at) THEN 'expires_at'
        WHEN ordering_key IS NOT NULL AND (priority IS NOT NULL OR held) THEN 'order'
    END;
BEGIN
    -- Apart from the CASE: a query inside it would cost every row, also those without headers.
    IF rule IS NULL AND headers::text <> '{}' THEN
        rule := (SELECT 'headers' FROM json_each(headers) h WHERE json_typeof(h.value) <> 'string' LIMIT 1);
    END IF;
    IF rule IS NULL THEN
        RETURN true;
    END IF;
    RAISE check_violation USING CONSTRAINT = 'outbox_message_' || rule || '_check', TABLE = 'outbox_message', MESSAGE =
        'this message could not run: ' || CASE rule
            WHEN 'task' THEN 'task must be a Celery task name: letters, digits and _ . : -, at most 255'
            WHEN 'task_celery' THEN 'task is built into Celery and could run any other task; name your own'
            WHEN 'queue' THEN 'queue must be letters, digits and _ . : @ / # -, at most 255'
            WHEN 'queue_kombu' THEN 'queue is a name that Celery keeps for itself on Redis; choose another'
            WHEN 'priority' THEN 'priority must be from 0 to 9 (higher runs sooner)'
            WHEN 'args' THEN 'args must be a JSON array'
            WHEN 'kwargs' THEN 'kwargs must be a JSON object'
            WHEN 'headers' THEN 'headers must be a JSON object of text values'
            WHEN 'body_hash' THEN 'body_hash must be the 32 bytes of a SHA-256, or NULL'
            WHEN 'ordering_key' THEN 'ordering_key must have 1 to 255 characters'
            WHEN 'unique_key' THEN 'unique_key must have 1 to 255 characters'
            WHEN 'key_prev' THEN 'key_prev needs an ordering_key and names another message; leave it to outbox_add()'
            WHEN 'expires_at' THEN 'expires_at must be finite, or NULL for never'
            ELSE 'ordering_key cannot be combined with priority or a later time: both would change the order'
        END;
END $$;

-- xid stands before seq: the transaction id is taken first, so a higher seq never means an earlier xid read.
CREATE TABLE outbox_message (
    id           uuid        NOT NULL,
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    seq          bigint      NOT NULL DEFAULT nextval('outbox_message_seq'),
    task         text        NOT NULL,
    queue        text,
    priority     smallint,
    args         json        NOT NULL DEFAULT '[]',
    kwargs       json        NOT NULL DEFAULT '{}',
    headers      json        NOT NULL DEFAULT '{}',
    body_hash    bytea,
    ordering_key text,
    key_prev     uuid,
    unique_key   text,
    batch_id     uuid,
    held         boolean     NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz,
    CONSTRAINT outbox_message_pkey PRIMARY KEY (id),
    CONSTRAINT outbox_message_check CHECK (outbox_message_check(id, task, queue, priority, args, kwargs, headers, body_hash,
        ordering_key, key_prev, unique_key, held, expires_at))
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.02
);

-- By id, not seq: Alembic takes a column that owns its sequence for SERIAL, and then misses its default.
ALTER SEQUENCE outbox_message_seq OWNED BY outbox_message.id;

COMMENT ON TABLE outbox_message IS 'one message a row, inserted by the application and never updated';

CREATE INDEX outbox_message_log ON outbox_message (xid, seq) WHERE NOT held;

COMMENT ON INDEX outbox_message_log IS
    'relay: poll, page plan and page of a window; reconcile: the same pages again; prune: oldest first';

CREATE INDEX outbox_message_held ON outbox_message (xid, seq) WHERE held;

COMMENT ON INDEX outbox_message_held IS 'prune: scheduled messages, oldest first';

CREATE INDEX outbox_message_batch ON outbox_message (batch_id) WHERE batch_id IS NOT NULL;

COMMENT ON INDEX outbox_message_batch IS 'writer and CLI: progress of one batch';

-- One narrow row, updated by ctid: almost empty pages keep every update on its own page (HOT).
CREATE TABLE outbox_leader (
    singleton    boolean     NOT NULL DEFAULT true,
    epoch        bigint      NOT NULL DEFAULT 0,
    holder       uuid,
    holds_lock   boolean     NOT NULL DEFAULT false,
    expires_at   timestamptz NOT NULL DEFAULT '-infinity',
    window_no    bigint      NOT NULL DEFAULT 0,
    prev         pg_snapshot NOT NULL,
    next         pg_snapshot,
    last_seq     bigint      NOT NULL DEFAULT 0,
    base_seq     bigint      NOT NULL DEFAULT 0,
    high_seq     bigint      NOT NULL DEFAULT 0,
    system_id    bigint      NOT NULL,
    reconciled   pg_snapshot NOT NULL,
    canary_epoch bigint      NOT NULL DEFAULT 0,
    canary       bigint      NOT NULL DEFAULT 0,
    CONSTRAINT outbox_leader_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_leader_singleton_check CHECK (singleton),
    CONSTRAINT outbox_leader_epoch_check CHECK (epoch >= 0),
    CONSTRAINT outbox_leader_holder_check CHECK (holder IS NOT NULL OR NOT holds_lock),
    CONSTRAINT outbox_leader_last_seq_check CHECK (last_seq >= base_seq)
) WITH (
    fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000
);

COMMENT ON TABLE outbox_leader IS 'the lease, the position, the reconciled snapshot and the last canary value';

-- '3:3:' sees nothing: a message written in the very transaction of this migration is still in the first window.
INSERT INTO outbox_leader (prev, reconciled, system_id)
    SELECT '3:3:', '3:3:', system_identifier FROM pg_control_system();

CREATE TABLE outbox_window (
    window_no     bigint      NOT NULL,
    from_snapshot pg_snapshot NOT NULL,
    to_snapshot   pg_snapshot NOT NULL,
    last_seq      bigint      NOT NULL,
    epoch         bigint      NOT NULL,
    relay         text        NOT NULL,
    closed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_window_pkey PRIMARY KEY (window_no)
);

COMMENT ON TABLE outbox_window IS 'a published stretch of the log, at most one row a second of publishing';

CREATE TABLE outbox_due (
    message_id  uuid        NOT NULL,
    due_at      timestamptz NOT NULL,
    attempt     integer     NOT NULL DEFAULT 0,
    publication integer     NOT NULL DEFAULT 0,
    reason      text        NOT NULL,
    seq          bigint     NOT NULL DEFAULT 0,
    queue        text,
    ordering_key text,
    blocked_by   text,
    why          text,
    parked_at    timestamptz,
    CONSTRAINT outbox_due_pkey PRIMARY KEY (message_id),
    CONSTRAINT outbox_due_attempt_check CHECK (attempt >= 0),
    CONSTRAINT outbox_due_publication_check CHECK (publication >= 0),
    CONSTRAINT outbox_due_reason_check
        CHECK (reason IN ('scheduled', 'retry', 'redelivery', 'replay', 'parked')),
    CONSTRAINT outbox_due_blocked_check CHECK (CASE blocked_by
        WHEN 'pause' THEN queue IS NOT NULL WHEN 'queue' THEN queue IS NOT NULL WHEN 'key' THEN ordering_key IS NOT NULL
        WHEN 'dead' THEN ordering_key IS NOT NULL ELSE blocked_by IS NULL END)
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE outbox_due IS 'a message to publish at a time: one plan a message';

CREATE INDEX outbox_due_at ON outbox_due (due_at, seq) WHERE blocked_by IS NULL;

COMMENT ON INDEX outbox_due_at IS 'relay: what is due now, from a remembered lower bound';

-- A parked message waits for its queue or its key, not for a time: it is out of the index above until released.
CREATE INDEX outbox_due_blocked ON outbox_due (blocked_by, queue, seq) WHERE blocked_by IS NOT NULL;

COMMENT ON INDEX outbox_due_blocked IS 'relay: the oldest parked message of a queue, and all of them when it is open again';

CREATE INDEX outbox_due_key ON outbox_due (ordering_key, seq) WHERE ordering_key IS NOT NULL;

COMMENT ON INDEX outbox_due_key IS 'relay: is an earlier message of this key still parked';

CREATE TABLE outbox_key (
    kind       text        NOT NULL,
    scope      text        NOT NULL DEFAULT '',
    key        text        NOT NULL,
    message_id uuid        NOT NULL,
    body_hash  bytea,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    CONSTRAINT outbox_key_pkey PRIMARY KEY (kind, scope, key),
    CONSTRAINT outbox_key_kind_check CHECK (kind IN ('dedup', 'unique', 'ordering')),
    CONSTRAINT outbox_key_key_check CHECK (length(key) BETWEEN 1 AND 255),
    CONSTRAINT outbox_key_body_hash_check CHECK (octet_length(body_hash) = 32)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

COMMENT ON TABLE outbox_key IS 'a dedup, unique or ordering key and the message that holds it';

CREATE INDEX outbox_key_message ON outbox_key (message_id);

COMMENT ON INDEX outbox_key_message IS 'prune: the keys of a message that goes';

CREATE TABLE outbox_relay (
    holder       uuid        NOT NULL,
    name         text        NOT NULL,
    version      text        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    broker_ok_at timestamptz,
    last_error   text,
    CONSTRAINT outbox_relay_pkey PRIMARY KEY (holder)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

COMMENT ON TABLE outbox_relay IS 'a running relay process; holder is random a process, name is only a label';

CREATE TABLE outbox_pause (
    queue        text        NOT NULL,
    paused_by    text        NOT NULL,
    why          text        NOT NULL,
    paused_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_until timestamptz,
    CONSTRAINT outbox_pause_pkey PRIMARY KEY (queue)
);

COMMENT ON TABLE outbox_pause IS 'a paused queue; queue ''*'' is everything';

-- A row a refusal, never updated: with one counter a key, rejected requests would wait for each other.
CREATE TABLE outbox_rejected (
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    unique_key  text        NOT NULL,
    live_id     uuid        NOT NULL,
    count       bigint      NOT NULL DEFAULT 1,
    rejected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_rejected_pkey PRIMARY KEY (id),
    CONSTRAINT outbox_rejected_count_check CHECK (count > 0)
);

COMMENT ON TABLE outbox_rejected IS 'duplicates refused by a unique key; their counts add up';

CREATE INDEX outbox_rejected_key ON outbox_rejected (unique_key, live_id);

COMMENT ON INDEX outbox_rejected_key IS 'writer and CLI: the refusals of one key; prune: those of a message that goes';

CREATE TABLE outbox_audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    who      text        NOT NULL,
    action   text        NOT NULL,
    why      text        NOT NULL DEFAULT '',
    affected bigint      NOT NULL DEFAULT 0,
    detail   json        NOT NULL DEFAULT '{}',
    CONSTRAINT outbox_audit_pkey PRIMARY KEY (id)
);

COMMENT ON TABLE outbox_audit IS 'an operator''s action';

-- message_id first: reconcile probes by id, and cancel, expiry and discard do not know every consumer.
CREATE TABLE inbox_receipt (
    message_id   uuid        NOT NULL,
    consumer     text        NOT NULL,
    status       text        NOT NULL,
    body_hash    bytea,
    result       json,
    published_at timestamptz,
    epoch        bigint,
    relay        text,
    received_at  timestamptz,
    applied_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_receipt_pkey PRIMARY KEY (message_id, consumer),
    CONSTRAINT inbox_receipt_status_check
        CHECK (status IN ('applied', 'dead', 'cancelled', 'expired', 'discarded')),
    CONSTRAINT inbox_receipt_body_hash_check CHECK (octet_length(body_hash) = 32)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_vacuum_insert_threshold = 5000
);

COMMENT ON TABLE inbox_receipt IS 'the terminal outcome of a message at a consumer; this primary key decides every race';

CREATE INDEX inbox_receipt_applied_at ON inbox_receipt USING brin (applied_at);

COMMENT ON INDEX inbox_receipt_applied_at IS 'metrics: receipts of the last seconds; status: the same';

CREATE INDEX inbox_receipt_cancelled ON inbox_receipt (applied_at) WHERE status = 'cancelled';

COMMENT ON INDEX inbox_receipt_cancelled IS 'relay: when a message was last cancelled; only older ones are asked about before they are published';

CREATE TABLE inbox_retry (
    message_id uuid        NOT NULL,
    consumer   text        NOT NULL,
    kind       text        NOT NULL,
    attempt    integer     NOT NULL DEFAULT 0,
    due_at     timestamptz NOT NULL,
    error      text,
    waits_for  uuid,
    CONSTRAINT inbox_retry_pkey PRIMARY KEY (message_id, consumer, kind),
    CONSTRAINT inbox_retry_kind_check CHECK (kind IN ('failure', 'start', 'check', 'early')),
    CONSTRAINT inbox_retry_attempt_check CHECK (attempt >= 0),
    CONSTRAINT inbox_retry_waits_for_check CHECK (waits_for IS NULL OR kind = 'early')
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE inbox_retry IS 'what the relay should publish again, and when';

CREATE INDEX inbox_retry_due ON inbox_retry (due_at);

COMMENT ON INDEX inbox_retry_due IS 'relay: turns due rows into outbox_due';

CREATE INDEX inbox_retry_waits_for ON inbox_retry (waits_for) WHERE waits_for IS NOT NULL;

COMMENT ON INDEX inbox_retry_waits_for IS 'consumer: pulls the successor of an ordered message forward';

CREATE TABLE inbox_claim (
    message_id uuid        NOT NULL,
    consumer   text        NOT NULL,
    holder     uuid        NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT inbox_claim_pkey PRIMARY KEY (message_id, consumer)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);

COMMENT ON TABLE inbox_claim IS 'a running outside effect, kept alive by a heartbeat';

CREATE TABLE inbox_dead_letter (
    message_id  uuid        NOT NULL,
    consumer    text        NOT NULL,
    category    text        NOT NULL,
    error_class text        NOT NULL,
    error       text        NOT NULL,
    traceback   text        NOT NULL DEFAULT '',
    error_group text        NOT NULL,
    attempts    integer     NOT NULL DEFAULT 0,
    message     json        NOT NULL,
    died_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_dead_letter_pkey PRIMARY KEY (message_id, consumer),
    CONSTRAINT inbox_dead_letter_category_check CHECK (category IN ('dead_letter', 'manual_review')),
    CONSTRAINT inbox_dead_letter_attempts_check CHECK (attempts >= 0),
    CONSTRAINT inbox_dead_letter_message_check CHECK (json_typeof(message) = 'object')
);

COMMENT ON TABLE inbox_dead_letter IS 'details of a dead message, with a copy of it';

CREATE INDEX inbox_dead_letter_group ON inbox_dead_letter (error_group, died_at);

COMMENT ON INDEX inbox_dead_letter_group IS 'CLI: dead letters by error group, newest last';

CREATE TABLE inbox_consumer (
    task            text        NOT NULL,
    receipt_timeout interval    NOT NULL,
    policy          json        NOT NULL DEFAULT '{}',
    inbox           text,
    registered_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_consumer_pkey PRIMARY KEY (task),
    CONSTRAINT inbox_consumer_receipt_timeout_check CHECK (receipt_timeout > interval '0'),
    CONSTRAINT inbox_consumer_policy_check CHECK (json_typeof(policy) = 'object')
);

COMMENT ON TABLE inbox_consumer IS 'a registered consumer; only an operator removes it';

COMMENT ON COLUMN inbox_consumer.inbox IS
    'NULL: its receipts are here; otherwise the name of the inbox database this row was copied from';

-- The wake-up flag: 1 = relay awake, writers stay silent; 2 = relay asleep, writers notify.
-- A logged sequence, not a table: its value ignores MVCC, so a REPEATABLE READ writer reads the newest one.
CREATE SEQUENCE outbox_wake AS smallint MINVALUE 1 MAXVALUE 2 START 1 CACHE 1;

SELECT setval('outbox_wake', 1);

CREATE FUNCTION outbox_notify() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('outbox', TG_TABLE_SCHEMA);
    RETURN NULL;
END $$;

-- From PostgreSQL 17 on the value is NULL for a role without rights on the flag: then rather notify too often.
CREATE TRIGGER outbox_message_wake AFTER INSERT ON outbox_message FOR EACH STATEMENT
    WHEN (pg_sequence_last_value('outbox_wake'::regclass) IS DISTINCT FROM 1) EXECUTE FUNCTION outbox_notify();
