CREATE TABLE tallyman_inbox (
    id               TEXT    PRIMARY KEY NOT NULL,
    token            INTEGER NOT NULL, -- the highest that was seen
    processed_offset INTEGER NOT NULL DEFAULT 0,
    result           BLOB,             -- once done_at is set
    created_at       INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    done_at          INTEGER
) WITHOUT ROWID;
CREATE INDEX tallyman_inbox_done ON tallyman_inbox (done_at) WHERE done_at IS NOT NULL;
