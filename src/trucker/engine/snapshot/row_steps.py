"""What a truck's rules and SQL are, for a copy that is continued: its rows must all be made in the same way."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Final

from trucker.config.models import TruckConfig
from trucker.config.sql.sql_files import FUNCTIONS

IRRELEVANT: Final = {"name", "folder", "files", "functions", "input"}
"""What says nothing of how rows are made, or is looked at by itself."""


def steps_digest(config: TruckConfig | None) -> str:
    """A text that is another one after any change of the rules, the SQL files or the settings; empty without them."""
    if config is None:
        return ""
    if config.functions:  # of functions that a program gives, nobody knows whether they are the same
        return secrets.token_hex(32)
    settings = config.model_dump_json(exclude=IRRELEVANT)
    keys = [rule.hash.key.get_secret_value() for rule in config.rules if rule.hash]
    files = [(file.name, file.text) for file in config.files]
    functions = (config.folder or Path()) / FUNCTIONS
    python = functions.read_text() if config.folder and functions.is_file() else ""
    return hashlib.sha256(json.dumps([settings, keys, files, python]).encode()).hexdigest()
