CREATE TABLE tallyman_events (
    run_id       TEXT    NOT NULL,
    seq          INTEGER NOT NULL CHECK (seq > 0),
    kind         TEXT    NOT NULL,
    content_type TEXT    NOT NULL,
    data         BLOB    NOT NULL,
    command_id   TEXT, -- the command that this event needs
    created_at   INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
CREATE INDEX tallyman_events_command ON tallyman_events (command_id) WHERE command_id IS NOT NULL;
