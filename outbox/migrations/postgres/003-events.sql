CREATE TABLE tallyman_events (
    run_id       text        COLLATE "C" NOT NULL,
    seq          bigint      NOT NULL CHECK (seq > 0),
    kind         text        NOT NULL,
    content_type text        NOT NULL,
    data         bytea       NOT NULL,
    command_id   text        COLLATE "C", -- the command that this event needs
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, seq)
);
CREATE INDEX tallyman_events_command ON tallyman_events (command_id) WHERE command_id IS NOT NULL;
