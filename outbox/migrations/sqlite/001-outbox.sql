-- All times are microseconds since 1970-01-01 UTC.
CREATE TABLE tallyman_outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT    NOT NULL UNIQUE,
    queue        TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    content_type TEXT    NOT NULL,
    payload      BLOB    NOT NULL,
    digest       TEXT    NOT NULL,
    not_after    INTEGER,
    order_key    TEXT    CHECK (order_key <> ''),
    run_id       TEXT,
    event_seq    INTEGER,
    state        TEXT    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'published', 'failed')),
    -- When a relay may claim the row next; for a row that is being sent that
    -- is the end of its lease. NULL: never.
    available_at INTEGER,
    lease_until  INTEGER GENERATED ALWAYS AS (CASE WHEN state = 'sending' THEN available_at END) VIRTUAL,
    owner        TEXT,
    taken_from   TEXT,
    deliveries   INTEGER NOT NULL DEFAULT 0, -- grows with each claim: the fencing token
    attempts     INTEGER NOT NULL DEFAULT 0, -- that failed
    error        TEXT,
    due_at       INTEGER NOT NULL,           -- when it could first have been sent
    created_at   INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    published_at INTEGER,
    receipt      TEXT,                       -- final state of the command in the pool
    settled_at   INTEGER,                    -- when a relay saw that receipt
    CHECK ((state = 'published') = (published_at IS NOT NULL)),
    CHECK (state <> 'published' OR available_at IS NULL),
    CHECK ((state = 'sending') = (owner IS NOT NULL)),
    CHECK ((settled_at IS NULL) = (receipt IS NULL))
);

CREATE INDEX tallyman_outbox_due ON tallyman_outbox (available_at, seq) WHERE available_at IS NOT NULL AND order_key IS NULL;
CREATE INDEX tallyman_outbox_keyed ON tallyman_outbox (order_key, seq) WHERE order_key IS NOT NULL AND published_at IS NULL;
CREATE INDEX tallyman_outbox_open ON tallyman_outbox (due_at) WHERE available_at IS NOT NULL;
CREATE INDEX tallyman_outbox_failed ON tallyman_outbox (seq) WHERE state = 'failed';
CREATE INDEX tallyman_outbox_unsettled ON tallyman_outbox (seq) WHERE published_at IS NOT NULL AND settled_at IS NULL;
CREATE INDEX tallyman_outbox_settled ON tallyman_outbox (settled_at) WHERE settled_at IS NOT NULL;
CREATE INDEX tallyman_outbox_run ON tallyman_outbox (run_id, event_seq) WHERE run_id IS NOT NULL;
