"""The wire format of the change log: pgoutput (logical replication, protocol version 1, text tuples) into columns.

The change log holds these messages whatever source they come from, so the decoder belongs to the log and not to a
source.

A run of messages (`change.Frames`) becomes `change.Changes` by table without a loop over rows: message starts
are an offsets array, and each column is one vectorised pass over all rows of a relation.

The wire. Numbers are big-endian; a string ends with a zero byte; an LSN is an int64; times are microseconds since 2000.

    Begin      B  lsn of the commit record · int64 commit time · int32 xid
    Commit     C  int8 flags · lsn of the commit record · lsn of its end · int64 commit time
    Origin     O  lsn at the origin · string name
    Relation   R  int32 oid · string schema ("" is pg_catalog) · string name · int8 identity (d n f i) · int16 columns ·
                  columns × (int8 flags (1: in the identity) · string name · int32 type oid · int32 typmod)
    Type       Y  int32 oid · string schema · string name
    Insert     I  int32 oid · "N" · tuple
    Update     U  int32 oid · ["K" tuple | "O" tuple] · "N" · tuple
    Delete     D  int32 oid · ("K" tuple | "O" tuple)
    Truncate   T  int32 relations · int8 options (1: cascade, 2: restart identity) · relations × int32 oid
    Message    M  int8 flags (1: transactional) · lsn · string prefix · int32 length · content

    tuple         int16 columns · columns × ("n" | "u" | "t" int32 length · text)
                  n: NULL, or not sent where it is no key in a "K" tuple; u: unchanged and not sent (TOAST)

"K" holds the identity's columns and comes when one of them changed (or lives out of line); "O" is the whole old row,
always there under REPLICA IDENTITY FULL. A Relation message is in force until the next of its oid.

Input that does not follow the table is a `SourceError`, code TRK250, that names the message's number and kind, never
its data. TRK251 is for changes that do not tell which row of the destination they are of.
"""

from __future__ import annotations

from trucker.pgoutput.decoding import Renames, ShapeKeys, decode
from trucker.pgoutput.relation import Relation, parse_relation

__all__ = ["Relation", "Renames", "ShapeKeys", "decode", "parse_relation"]
