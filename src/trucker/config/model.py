"""The base of all settings, and the kinds of text that several of them share.

No message of a model quotes a value, and secrets are `SecretStr`, so none can reach a log or a page (I10).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024

Text = Annotated[str, Field(min_length=1)]
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Model(BaseModel):
    """Frozen, and strict about names: an unknown key is an error. Errors do not show what was given."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True)

    shorthand: ClassVar[str | None] = None
    """The key that a text alone stands for, where a text may be written instead of the mapping."""

    def __hash__(self) -> int:
        """By what it shows: some settings are mappings, which have no hash of their own."""
        return hash(repr(self))
