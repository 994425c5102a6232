CREATE TABLE tallyman_outbox (
    seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           text        COLLATE "C" NOT NULL UNIQUE,
    queue        text        NOT NULL,
    kind         text        NOT NULL,
    content_type text        NOT NULL,
    payload      bytea       NOT NULL,
    digest       text        NOT NULL,
    not_after    timestamptz,
    order_key    text        COLLATE "C" CHECK (order_key <> ''),
    run_id       text        COLLATE "C",
    event_seq    bigint,
    state        text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'published', 'failed')),
    -- When a relay may claim the row next; for a row that is being sent that
    -- is the end of its lease. NULL: never.
    available_at timestamptz,
    lease_until  timestamptz GENERATED ALWAYS AS (CASE WHEN state = 'sending' THEN available_at END) STORED,
    owner        text,
    taken_from   text,
    deliveries   bigint      NOT NULL DEFAULT 0, -- grows with each claim: the fencing token
    attempts     bigint      NOT NULL DEFAULT 0, -- that failed
    error        text,
    due_at       timestamptz NOT NULL,           -- when it could first have been sent
    created_at   timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    receipt      text,                           -- final state of the command in the pool
    settled_at   timestamptz,                    -- when a relay saw that receipt
    CHECK ((state = 'published') = (published_at IS NOT NULL)),
    CHECK (state <> 'published' OR available_at IS NULL),
    CHECK ((state = 'sending') = (owner IS NOT NULL)),
    CHECK ((settled_at IS NULL) = (receipt IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX tallyman_outbox_due ON tallyman_outbox (available_at, seq) WHERE available_at IS NOT NULL AND order_key IS NULL;
CREATE INDEX tallyman_outbox_keyed ON tallyman_outbox (order_key, seq) WHERE order_key IS NOT NULL AND published_at IS NULL;
CREATE INDEX tallyman_outbox_open ON tallyman_outbox (due_at) WHERE available_at IS NOT NULL;
CREATE INDEX tallyman_outbox_failed ON tallyman_outbox (seq) WHERE state = 'failed';
CREATE INDEX tallyman_outbox_unsettled ON tallyman_outbox (seq) WHERE published_at IS NOT NULL AND settled_at IS NULL;
CREATE INDEX tallyman_outbox_settled ON tallyman_outbox (settled_at) WHERE settled_at IS NOT NULL;
CREATE INDEX tallyman_outbox_run ON tallyman_outbox (run_id, event_seq) WHERE run_id IS NOT NULL;
