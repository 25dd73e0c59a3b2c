"""Rows of a copy that pass unread into a file, for a commit that brings them together with changes.

Neither the executor nor the driver looks at them: the source's COPY writes what the destination's COPY reads. What the
destination refuses is found as in any other stage, once the rows are text (`plain_rows`).
"""

from __future__ import annotations

from trucker.sinks.postgres.copy.raw_copy import Passage
from trucker.sinks.postgres.ddl.destination_table import DestinationTable
from trucker.sinks.postgres.session import Session
from trucker.sinks.postgres.stage.text_stage import copy_in, plain_columns
from trucker.sinks.sql.staged_text import Chunk, Contents
from trucker.sinks.target import Target
from trucker.sinks.text_files import TextFiles


def stage_raw(passage: Passage, files: TextFiles, name: str) -> Chunk | None:
    """Write the rows to the file `name`; None where there are none."""
    raw = passage.open()
    try:
        files.append(name, passage.table, raw)
    except BaseException:
        raw.close()
        raise
    rows = raw.rows or 0
    if not rows:
        files.remove(name)
        return None
    return Chunk(Contents(passage.names, rows, rows, 0, bare=True), file=name, types=passage.types)


def fits(chunk: Chunk, table: DestinationTable) -> bool:
    """Whether the table has the columns that a binary chunk was staged for, of its types. Text fits any table."""
    names = chunk.contents.columns[: len(chunk.types)]
    columns = [table.columns.get(name) for name in names]
    return chunk.types == tuple([column.type_oid for column in columns if column is not None])


def plain_rows(session: Session, chunk: Chunk, files: TextFiles, target: Target, name: str) -> None:
    """Make the temporary table `name` with a binary chunk's rows as text, inside the caller's transaction."""
    contents, raw = chunk.contents, f"{name}_raw"
    numbered = "unnest($1::oid[]) with ordinality as u(type, number)"
    types = session.run(f"select format_type(type, -1) from {numbered} order by number", list(chunk.types))
    columns = [f"c{number} {type_}" for number, (type_,) in enumerate(types.fetchall())]
    names = [f"c{number}" for number in range(len(columns))]
    session.run(f"create temporary table {raw} ({', '.join(columns)}) on commit drop")
    copy_in(session, f"{raw} ({', '.join(names)})", files.read(chunk.file), binary=True)
    session.run(f"create temporary table {name} ({plain_columns(contents, target)}) on commit drop")
    texts = ", ".join(f"{column}::text" for column in names)
    session.run(f"insert into {name} ({', '.join(names)}) select {texts} from {raw}")
    session.run(f"drop table {raw}")
