-- What a writer may do beyond one INSERT: claim a key, schedule, cancel, ask. The functions belong to the owner of
-- the tables (SECURITY DEFINER), so a writer needs no right on outbox_key, outbox_due or inbox_receipt.
-- Inside a function no empty line follows a semicolon: that is where a statement of this file ends.

CREATE FUNCTION outbox_states(ids uuid[]) RETURNS TABLE (message_id uuid, state text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    -- The lock that a consumer holds while it runs; all of them are read once, not once a message.
    WITH locked AS MATERIALIZED (
        SELECT l.classid::bigint << 32 | l.objid::bigint AS key FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
    SELECT asked.id, CASE
        WHEN r.status IS NOT NULL THEN r.status
        WHEN m.id IS NULL THEN 'unknown'
        WHEN hashtextextended(m.task || ' ' || m.id::text, 0::bigint) IN (SELECT key FROM locked) THEN 'running'
        WHEN d.reason = 'scheduled' AND d.publication = 0 THEN 'scheduled'
        WHEN d.reason = 'parked' THEN 'queued'
        WHEN d.attempt > 0 OR EXISTS (
            SELECT FROM inbox_retry t WHERE t.message_id = m.id AND t.kind = 'failure') THEN 'retrying'
        WHEN m.held OR m.seq <= p.base_seq OR pg_visible_in_snapshot(m.xid, p.prev)
            OR (m.seq <= p.last_seq AND pg_visible_in_snapshot(m.xid, p.next)) THEN 'published'
        ELSE 'queued'
    END
    FROM unnest(ids) asked (id) CROSS JOIN outbox_leader p
        LEFT JOIN outbox_message m ON m.id = asked.id
        LEFT JOIN outbox_due d ON d.message_id = asked.id
        LEFT JOIN LATERAL (SELECT i.status FROM inbox_receipt i
            WHERE i.message_id = asked.id AND i.consumer = coalesce(m.task, i.consumer) LIMIT 1) r ON true
$$;

COMMENT ON FUNCTION outbox_states(uuid[]) IS
    'where each message is now: scheduled, queued, published, running, retrying, or how it ended';

CREATE FUNCTION outbox_batch(batch uuid) RETURNS TABLE (state text, messages bigint)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT s.state, count(*)
    FROM outbox_states(ARRAY(SELECT m.id FROM outbox_message m WHERE m.batch_id = batch)) s GROUP BY s.state
$$;

COMMENT ON FUNCTION outbox_batch(uuid) IS 'how far the messages of one add_many() are';

-- A cancelled message has a receipt like any other end, so whichever commits first decides: cancel or effect. It
-- takes the consumer's own lock and never waits for it. outbox_due is not touched: the relay would have to wait for
-- this transaction; it asks for the receipt before it publishes.
CREATE FUNCTION outbox_cancel(id uuid) RETURNS TABLE (outcome text, state text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    m record;
    was text := (SELECT s.state FROM outbox_states(ARRAY[$1]) s);
BEGIN
    IF was IN ('applied', 'dead', 'cancelled', 'expired', 'discarded') THEN
        RETURN QUERY SELECT 'finished', was;
        RETURN;
    ELSIF was IN ('unknown', 'running') THEN
        -- running: also when this very transaction is the handler's, whose lock it could take once more.
        RETURN QUERY SELECT was, was;
        RETURN;
    END IF;
    SELECT o.task, o.body_hash, c.task IS NOT NULL AS consumed, c.inbox INTO m
        FROM outbox_message o LEFT JOIN inbox_consumer c ON c.task = o.task WHERE o.id = $1;
    IF m.inbox IS NOT NULL THEN
        RETURN QUERY SELECT 'elsewhere', was;
    ELSIF NOT m.consumed AND was <> 'scheduled' THEN
        -- Without a consumer nothing looks for a receipt once a copy is on its way.
        RETURN QUERY SELECT 'too_late', was;
    ELSIF NOT pg_try_advisory_xact_lock(hashtextextended(m.task || ' ' || $1::text, 0::bigint)) THEN
        RETURN QUERY SELECT 'running', 'running';
    ELSE
        INSERT INTO inbox_receipt (message_id, consumer, status, body_hash) VALUES ($1, m.task, 'cancelled', m.body_hash)
            ON CONFLICT (message_id, consumer) DO NOTHING;
        -- It may have ended between the look and the lock.
        RETURN QUERY SELECT CASE WHEN FOUND THEN 'cancelled' ELSE 'finished' END, s.state
            FROM outbox_states(ARRAY[$1]) s;
    END IF;
END $$;

COMMENT ON FUNCTION outbox_cancel(uuid) IS
    'cancelled; or running, finished, unknown, too_late (no consumer), elsewhere (consumed in another database)';

-- What outbox_write() is told of one message. Times come either way: a moment, or counted from now. dedup_hash says
-- what counts as the same body; body_hash is that of the very arguments, which consumers compare.
CREATE TYPE outbox_request AS (
    id uuid, task text, queue text, priority smallint, args json, kwargs json, headers json, body_hash text,
    dedup_key text, dedup_window interval, unique_key text, ordering_key text, due_at timestamptz, delay interval,
    expires_at timestamptz, expires_in interval, batch_id uuid, dedup_hash bytea
);

-- Messages with keys, delays or relative times: JSON in, one line a message out. Called by Outbox.add and add_many,
-- which have checked the payloads; other languages call outbox_add().
--
-- Locks are taken in one order (dedup keys, unique keys, ordering keys; each sorted), so calls that share
-- keys wait for each other and never deadlock. A waiting writer wakes when the first one ends: committed, it finds a
-- duplicate; rolled back, it has the key. No subtransaction: more than 64 of them in one transaction would slow down
-- every snapshot of the server. So what was claimed for a message that is then refused is taken back by hand.
--
-- Under REPEATABLE READ and above a key that another transaction claimed after this one began cannot be seen, only
-- run into: PostgreSQL raises a serialization failure, and the transaction has to be run again.
CREATE FUNCTION outbox_write(messages json) RETURNS TABLE (number integer, id uuid, outcome text, state text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz := clock_timestamp();
    rows outbox_request[] := ARRAY(SELECT r FROM json_populate_recordset(NULL::outbox_request, messages) r);
    size integer := cardinality(rows);
    outcomes text[] := array_fill('added'::text, ARRAY[size]);
    holders uuid[] := array_fill(NULL::uuid, ARRAY[size]);
    taken text[] := array_fill(NULL::text, ARRAY[size]);
    claimed uuid[] := '{}';
    found_id uuid;
    found_hash bytea;
    over boolean;
    n integer;
    m record;
BEGIN
    -- What can never be written, before anything is.
    RETURN QUERY SELECT r.ordinality::integer, r.id, CASE WHEN c.task IS NULL THEN 'never' ELSE 'elsewhere' END, NULL::text
        FROM unnest(rows) WITH ORDINALITY r
            LEFT JOIN inbox_consumer c ON c.task = r.task AND c.inbox IS NOT NULL AND r.unique_key IS NOT NULL
        WHERE c.task IS NOT NULL OR coalesce(r.expires_at, now_at + r.expires_in) <= coalesce(r.due_at, now_at + r.delay)
        ORDER BY r.ordinality LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    FOR m IN SELECT r.*, r.ordinality::integer AS n FROM unnest(rows) WITH ORDINALITY r
        WHERE r.dedup_key IS NOT NULL ORDER BY r.dedup_key COLLATE "C", r.ordinality
    LOOP
        LOOP
            INSERT INTO outbox_key (kind, key, message_id, body_hash, expires_at)
                VALUES ('dedup', m.dedup_key, m.id, m.dedup_hash, now_at + m.dedup_window)
                ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT k.message_id, k.body_hash, k.expires_at <= now_at INTO found_id, found_hash, over
                FROM outbox_key k WHERE k.kind = 'dedup' AND k.scope = '' AND k.key = m.dedup_key;
            CONTINUE WHEN NOT FOUND;
            IF over THEN
                UPDATE outbox_key k SET message_id = m.id, body_hash = m.dedup_hash, created_at = now_at,
                        expires_at = now_at + m.dedup_window
                    WHERE k.kind = 'dedup' AND k.scope = '' AND k.key = m.dedup_key AND k.message_id = found_id;
                EXIT WHEN FOUND;
                CONTINUE;
            END IF;
            holders[m.n] := found_id;
            IF found_hash IS NOT DISTINCT FROM m.dedup_hash THEN
                outcomes[m.n] := 'duplicate';
                EXIT;
            END IF;
            -- A key that had expired is as good as none, so taking it back and deleting it are the same.
            DELETE FROM outbox_key k USING unnest(rows) r
                WHERE k.kind = 'dedup' AND k.scope = '' AND k.key = r.dedup_key AND k.message_id = r.id;
            RETURN QUERY SELECT m.n, found_id, 'conflict', NULL::text;
            RETURN;
        END LOOP;
    END LOOP;
    FOR m IN SELECT r.*, r.ordinality::integer AS n FROM unnest(rows) WITH ORDINALITY r
        WHERE r.unique_key IS NOT NULL AND outcomes[r.ordinality] = 'added'
        ORDER BY r.unique_key COLLATE "C", r.ordinality
    LOOP
        LOOP
            INSERT INTO outbox_key (kind, key, message_id) VALUES ('unique', m.unique_key, m.id) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT k.message_id INTO found_id
                FROM outbox_key k WHERE k.kind = 'unique' AND k.scope = '' AND k.key = m.unique_key;
            CONTINUE WHEN NOT FOUND;
            -- Live: not ended, and not pruned. Those of this very call are not in the table yet.
            IF found_id = ANY (claimed) OR EXISTS (
                SELECT FROM outbox_message o WHERE o.id = found_id AND NOT EXISTS (
                    SELECT FROM inbox_receipt r WHERE r.message_id = o.id AND r.consumer = o.task))
            THEN
                -- And whatever of this call is a duplicate of it: the same request has the same answer.
                FOR n IN SELECT m.n UNION ALL SELECT s FROM generate_series(1, size) s
                    WHERE m.dedup_key IS NOT NULL AND outcomes[s] = 'duplicate' AND holders[s] = m.id
                LOOP
                    outcomes[n] := 'live';
                    holders[n] := found_id;
                    taken[n] := m.unique_key;
                END LOOP;
                DELETE FROM outbox_key k
                    WHERE k.kind = 'dedup' AND k.scope = '' AND k.key = m.dedup_key AND k.message_id = m.id;
                EXIT;
            END IF;
            UPDATE outbox_key k SET message_id = m.id, created_at = now_at
                WHERE k.kind = 'unique' AND k.scope = '' AND k.key = m.unique_key AND k.message_id = found_id;
            EXIT WHEN FOUND;
        END LOOP;
        IF outcomes[m.n] = 'added' THEN
            claimed := claimed || m.id;
        END IF;
    END LOOP;
    -- One row a key is the lock of all its writers, whatever their task. Not an advisory lock: those live in shared
    -- memory, and a few thousand keys in one transaction would use it up.
    FOR m IN SELECT DISTINCT ON (r.ordering_key COLLATE "C") r.ordering_key, r.id
        FROM unnest(rows) WITH ORDINALITY r
        WHERE r.ordering_key IS NOT NULL AND outcomes[r.ordinality] = 'added'
        ORDER BY r.ordering_key COLLATE "C", r.ordinality
    LOOP
        LOOP
            INSERT INTO outbox_key (kind, key, message_id) VALUES ('ordering', m.ordering_key, m.id)
                ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            PERFORM FROM outbox_key k WHERE k.kind = 'ordering' AND k.scope = '' AND k.key = m.ordering_key
                FOR NO KEY UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
    END LOOP;
    FOR m IN SELECT r.*, r.ordinality::integer AS n FROM unnest(rows) WITH ORDINALITY r
        WHERE r.ordering_key IS NOT NULL AND outcomes[r.ordinality] = 'added' ORDER BY r.ordinality
    LOOP
        SELECT k.message_id INTO found_id
            FROM outbox_key k WHERE k.kind = 'ordering' AND k.scope = m.task AND k.key = m.ordering_key;
        holders[m.n] := CASE WHEN FOUND THEN found_id END;
        INSERT INTO outbox_key AS k (kind, scope, key, message_id) VALUES ('ordering', m.task, m.ordering_key, m.id)
            ON CONFLICT (kind, scope, key) DO UPDATE SET message_id = excluded.message_id, created_at = now_at;
    END LOOP;
    -- In the order of the call: seq is the order of publication.
    INSERT INTO outbox_message (id, task, queue, priority, args, kwargs, headers, body_hash, ordering_key, key_prev,
        unique_key, batch_id, held, expires_at)
    SELECT r.id, r.task, r.queue, r.priority, r.args, r.kwargs, coalesce(r.headers, '{}'), decode(r.body_hash, 'hex'),
        r.ordering_key, CASE WHEN r.ordering_key IS NOT NULL THEN holders[r.ordinality] END, r.unique_key, r.batch_id,
        coalesce(coalesce(r.due_at, now_at + r.delay) > now_at, false), coalesce(r.expires_at, now_at + r.expires_in)
    FROM unnest(rows) WITH ORDINALITY r WHERE outcomes[r.ordinality] = 'added' ORDER BY r.ordinality;
    -- Nobody means a message ten years from now; the bound keeps a slip of the pen out of the far future.
    INSERT INTO outbox_due (message_id, due_at, reason)
    SELECT r.id, least(coalesce(r.due_at, now_at + r.delay), now_at + interval '10 years'), 'scheduled'
    FROM unnest(rows) WITH ORDINALITY r
    WHERE outcomes[r.ordinality] = 'added' AND coalesce(r.due_at, now_at + r.delay) > now_at;
    INSERT INTO outbox_rejected (unique_key, live_id, count)
    SELECT taken[s], holders[s], count(*) FROM generate_subscripts(outcomes, 1) s WHERE outcomes[s] = 'live' GROUP BY 1, 2;
    RETURN QUERY SELECT r.ordinality::integer,
        CASE WHEN outcomes[r.ordinality] = 'added' THEN r.id ELSE holders[r.ordinality] END, outcomes[r.ordinality],
        t.state
    FROM unnest(rows) WITH ORDINALITY r LEFT JOIN outbox_states(ARRAY(
            SELECT DISTINCT holders[s] FROM generate_subscripts(outcomes, 1) s WHERE outcomes[s] = 'live')) t
        ON t.message_id = holders[r.ordinality] AND outcomes[r.ordinality] = 'live'
    ORDER BY r.ordinality;
END $$;

COMMENT ON FUNCTION outbox_write(json) IS
    'for Outbox.add: outcome is added, duplicate, live, conflict, elsewhere or never; the last three write nothing';

-- The same checks as the Python writer's codec, for payloads from elsewhere. The worker decodes with Python's json
-- and kombu: what those would refuse or change must not get in. A cast to jsonb refuses \u0000 and lone surrogates.
CREATE FUNCTION outbox_check_payload(task text, args json, kwargs json, headers json) RETURNS void
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    size integer := octet_length(args::text) + octet_length(kwargs::text) + octet_length(headers::text);
    part record;
BEGIN
    -- Caught, because PostgreSQL's own message quotes the payload.
    BEGIN
        PERFORM args::jsonb, kwargs::jsonb, headers::jsonb;
    EXCEPTION
        WHEN numeric_value_out_of_range THEN
            RAISE numeric_value_out_of_range USING
                MESSAGE = 'outbox_add: the payload has a number that a worker cannot read back', HINT = 'Pass it as text.';
        WHEN untranslatable_character OR invalid_text_representation THEN
            RAISE untranslatable_character USING
                MESSAGE = 'outbox_add: the payload contains \u0000 or a lone surrogate, which is no text',
                HINT = 'Remove it, or decode the text again.';
    END;
    IF size > 262144 THEN
        RAISE program_limit_exceeded USING
            MESSAGE = format('outbox_add: the payload of %s is %s KiB, limit 256 KiB', task, size / 1024),
            HINT = 'Pass a reference to where the data is kept.';
    END IF;
    -- Walked as json: jsonb keeps only the last of two equal keys, while the worker is sent both.
    FOR part IN
        WITH RECURSIVE node (name, value, depth) AS (
            VALUES ('args', args, 0), ('kwargs', kwargs, 0), ('headers', headers, 0)
            UNION ALL
            SELECT n.name, c.value, n.depth + 1 FROM node n CROSS JOIN LATERAL (
                SELECT e.value FROM json_each(CASE json_typeof(n.value) WHEN 'object' THEN n.value END) e
                UNION ALL
                SELECT a.value FROM json_array_elements(CASE json_typeof(n.value) WHEN 'array' THEN n.value END) a
            ) c WHERE n.depth <= 100)
        SELECT n.name, max(n.depth) AS depth, bool_or(k.twice) AS twice, bool_or(k.typed) AS typed,
            (array_agg(n.value) FILTER (WHERE n.depth = 0))[1] AS value
        FROM node n LEFT JOIN LATERAL (
            SELECT count(*) <> count(DISTINCT e.key) AS twice, bool_or(e.key = '__type__') AS typed
            FROM json_each(CASE json_typeof(n.value) WHEN 'object' THEN n.value END) e) k ON true
        GROUP BY n.name ORDER BY n.name
    LOOP
        IF part.depth > 100 THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('outbox_add: %s is nested deeper than 100 levels', part.name),
                HINT = 'Flatten it or pass a reference.';
        ELSIF part.twice THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('outbox_add: %s has an object with the same key twice', part.name),
                HINT = 'Give each key once.';
        ELSIF part.typed THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('outbox_add: %s has the key "__type__"', part.name),
                HINT = 'Celery''s JSON decoder would make another object of it; rename the key.';
        ELSIF part.value::text ~ '[0-9]{200}|[eE][+]?[0-9]{3}' AND EXISTS (
            SELECT FROM jsonb_path_query(part.value::jsonb, '$.** ? (@.type() == "number")') found (number)
            WHERE abs(number::numeric) > 1.7976931348623157e308)
        THEN
            RAISE numeric_value_out_of_range USING
                MESSAGE = format('outbox_add: %s has a number that a worker cannot read back', part.name),
                HINT = 'Pass it as text.';
        END IF;
    END LOOP;
    IF kwargs::jsonb ? 'self' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'outbox_add: the name "self" is taken by Celery''s own call of the task',
            HINT = 'Rename the argument.';
    END IF;
    FOR part IN SELECT h.key AS name, jsonb_typeof(h.value) AS kind FROM jsonb_each(headers::jsonb) h LOOP
        IF part.kind <> 'string' THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('outbox_add: header %L must be text', left(part.name, 60)), HINT = 'Convert it to text.';
        ELSIF part.name = ANY (string_to_array(
            '_children _filter_x_death_headers _get_custom_headers _protected args argsrepr as_execution_options'
            ' callbacks called_directly chain children chord clear compression correlation_id delivery_info'
            ' errbacks eta expires get group group_index headers hostname id ignore_result is_eager kwargs'
            ' kwargsrepr lang logfile loglevel meth method origin outbox parent_id properties'
            ' replaced_task_nesting reply_to retries root_id shadow soft_time_limit stamped_headers stamps task'
            ' taskset time_limit timelimit update utc', ' ')) THEN
            RAISE invalid_parameter_value USING
                MESSAGE = format('outbox_add: header %L is set by Celery or the relay', left(part.name, 60)),
                HINT = 'Choose another name.';
        END IF;
    END LOOP;
END $$;

-- UUIDv7 as PostgreSQL 18 makes them; older versions need it spelled out. The time in it only keeps the index compact.
CREATE FUNCTION outbox_new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1),
        'hex')::uuid
$$;

CREATE FUNCTION outbox_add(
    task text, args json DEFAULT '[]', kwargs json DEFAULT '{}', queue text DEFAULT NULL, priority integer DEFAULT NULL,
    headers json DEFAULT '{}', id uuid DEFAULT NULL, body_hash bytea DEFAULT NULL, dedup_key text DEFAULT NULL,
    dedup_window interval DEFAULT NULL, unique_key text DEFAULT NULL, ordering_key text DEFAULT NULL,
    due_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    expires_in interval DEFAULT NULL, batch_id uuid DEFAULT NULL
) RETURNS TABLE (message_id uuid, duplicate boolean, state text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
    written record;
    wrong text := CASE
        WHEN task IS NULL THEN 'task cannot be NULL'
        WHEN args IS NULL OR kwargs IS NULL OR headers IS NULL THEN 'args, kwargs and headers cannot be NULL; leave them out'
        WHEN json_typeof(args) <> 'array' THEN 'args must be a JSON array'
        WHEN json_typeof(kwargs) <> 'object' THEN 'kwargs must be a JSON object'
        WHEN json_typeof(headers) <> 'object' THEN 'headers must be a JSON object of text values'
        WHEN dedup_key IS NOT NULL AND body_hash IS NULL THEN 'a dedup_key needs the body_hash, to tell a repeat from another message; pass sha256() of what makes it the same'
        WHEN dedup_window IS NOT NULL AND dedup_key IS NULL THEN 'dedup_window needs a dedup_key'
        WHEN dedup_window <= interval '0' THEN 'dedup_window must be longer than nothing'
        WHEN length(dedup_key) NOT BETWEEN 1 AND 255 THEN 'dedup_key must have 1 to 255 characters'
        WHEN length(unique_key) NOT BETWEEN 1 AND 255 THEN 'unique_key must have 1 to 255 characters'
        WHEN length(ordering_key) NOT BETWEEN 1 AND 255 THEN 'ordering_key must have 1 to 255 characters'
        WHEN octet_length(body_hash) <> 32 THEN 'body_hash must be the 32 bytes of a SHA-256, or NULL'
        WHEN expires_in <= interval '0' THEN 'expires_in must be longer than nothing: the message would never run'
        WHEN due_at IS NOT NULL AND delay IS NOT NULL THEN 'give due_at or delay, not both'
        WHEN expires_at IS NOT NULL AND expires_in IS NOT NULL THEN 'give expires_at or expires_in, not both'
        WHEN ordering_key IS NOT NULL AND num_nonnulls(priority, due_at, delay) > 0
            THEN 'ordering_key cannot be combined with priority, due_at or delay: they would change the order'
        WHEN priority NOT BETWEEN 0 AND 9 THEN 'priority must be from 0 to 9 (higher runs sooner)'
    END;
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'outbox_add: ' || wrong;
    END IF;
    PERFORM outbox_check_payload(task, args, kwargs, headers);
    SELECT w.id, w.outcome, w.state INTO STRICT written FROM outbox_write(json_build_array(json_build_object(
        'id', coalesce(id, outbox_new_id()), 'task', task, 'queue', queue, 'priority', priority, 'args', args,
        'kwargs', kwargs, 'headers', headers, 'dedup_hash', body_hash, 'dedup_key', dedup_key,
        'dedup_window', dedup_window, 'unique_key', unique_key, 'ordering_key', ordering_key, 'due_at', due_at,
        'delay', delay, 'expires_at', expires_at, 'expires_in', expires_in, 'batch_id', batch_id))) w;
    CASE written.outcome
        WHEN 'conflict' THEN
            RAISE unique_violation USING
                MESSAGE = format('outbox_add: dedup_key %L stands for another body, that of message %s', left(dedup_key, 60),
                    written.id),
                HINT = 'Use a key that is different for different work.';
        WHEN 'never' THEN
            RAISE invalid_parameter_value USING MESSAGE = 'outbox_add: it would expire before it is due';
        WHEN 'elsewhere' THEN
            RAISE feature_not_supported USING
                MESSAGE = format('outbox_add: %s is consumed in another database, where unique_key cannot look', task),
                HINT = 'Use dedup_key.';
        ELSE
            RETURN QUERY SELECT written.id, written.outcome <> 'added', written.state;
    END CASE;
END $$;

COMMENT ON FUNCTION outbox_add IS
    'write a message from any language or trigger, in the transaction that calls it; docs/reference.md lists the options';

REVOKE ALL ON FUNCTION outbox_states(uuid[]), outbox_batch(uuid), outbox_cancel(uuid), outbox_write(json), outbox_add
    FROM PUBLIC;
