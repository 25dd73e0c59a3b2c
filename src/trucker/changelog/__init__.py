"""The change log: what capture has received, durable and in order, for every truck to read at its own pace.

    <folder>/
      source.json                                  which database, slot and publication it belongs to
      durable                                      the durable end, 2 × 64 bytes (`durable`)
      writer.lock                                  held by the one writer
      <base>.<part>.open                           being written
      <base>.<part>-<last>.<bytes>.segment         sealed: never changed again, only deleted (`retention`)

`base` is the end LSN of the last commit before the segment, `part` tells apart segments of one base (a transaction
that is larger than a segment), `last` is the LSN at which everything in the segment has been applied; all
hexadecimal. A segment is a row of blocks (`block`) and can be read alone. Capture imports `writer`, which loads
neither numpy nor Arrow; everybody else imports `reader` and `retention`.
"""

from __future__ import annotations
