-- The history: run this at the destination.
CREATE TABLE history (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    commit_lsn pg_lsn NOT NULL,         -- the commit that the change was part of
    ordinal bigint,                     -- its place in that transaction
    commit_time timestamptz,
    xid bigint,                         -- NULL in rows that were there at the start
    table_name text NOT NULL,
    operation text NOT NULL,
    before jsonb,                       -- NULL for an insert
    after jsonb                         -- NULL for a delete
);
-- A change that came twice would be refused.
CREATE UNIQUE INDEX ON history (commit_lsn, ordinal) WHERE xid IS NOT NULL;
