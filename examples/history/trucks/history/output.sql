-- Runs at the destination for every run of changes of one table and one operation, in the order of their commits.
-- Any table will do: its columns are taken from the row itself.
INSERT INTO history (commit_lsn, ordinal, commit_time, xid, table_name, operation, before, after)
SELECT
    r.commit_lsn, r.ordinal, r.commit_time, r.xid, '{{ input_table }}', r.operation,
    CASE WHEN r.operation <> 'insert' THEN (
        SELECT jsonb_object_agg(substr(key, 6), value) FROM jsonb_each(to_jsonb(r)) WHERE starts_with(key, 'old__')
    ) END,
    CASE WHEN r.operation <> 'delete' THEN (
        SELECT jsonb_object_agg(key, value) FROM jsonb_each(to_jsonb(r))
        WHERE NOT starts_with(key, 'old__')
        AND key NOT IN ('commit_lsn', 'commit_time', 'xid', 'ordinal', 'operation')
    ) END
FROM {{ rows }}
ORDER BY r.commit_lsn, r.ordinal
