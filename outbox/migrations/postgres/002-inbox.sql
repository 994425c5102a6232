CREATE TABLE tallyman_inbox (
    id               text        COLLATE "C" PRIMARY KEY,
    token            bigint      NOT NULL, -- the highest that was seen
    processed_offset bigint      NOT NULL DEFAULT 0,
    result           bytea,                -- once done_at is set
    created_at       timestamptz NOT NULL DEFAULT now(),
    done_at          timestamptz
);
CREATE INDEX tallyman_inbox_done ON tallyman_inbox (done_at) WHERE done_at IS NOT NULL;
