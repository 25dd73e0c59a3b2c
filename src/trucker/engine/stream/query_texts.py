"""What Spark hands on of a streaming query as text alone: the end of a micro-batch, and why the query ended."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trucker.errors import ChangeLogError, ChangeLogUnavailable
from trucker.lsn import Lsn


def offset_of(checkpoint: Path, batch_id: int) -> Lsn:
    """The end of a micro-batch, from the offset that Spark wrote into the checkpoint before it began the batch."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    offset: dict[str, Any] = json.loads(text.splitlines()[2])
    return Lsn(offset["lsn"])


def log_damage(text: str) -> ChangeLogError | None:
    """What is wrong with the change log, by the text of the exception that ended the streaming query.

    None where the query ended for another reason. Spark hands on an error of the source as text alone.
    """
    found = re.search(r"\[(TRK3\d\d)\] (.+)(?:\n +next: (.+))?", text)
    if found is None or found[1] == ChangeLogUnavailable.code:
        return None
    return ChangeLogError(found[2], remedy=found[3] or "", code=found[1])
