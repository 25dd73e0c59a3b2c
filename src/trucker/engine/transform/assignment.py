"""The assignment: which changes of a table go to which target, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from trucker.engine.schema.column_identity import OwnShapes
from trucker.engine.transform.recipe import Recipe
from trucker.lsn import Lsn
from trucker.pgoutput import Renames
from trucker.sinks.target import Target
from trucker.table import TableSchema


@dataclass(frozen=True, slots=True)
class Assignment:
    """One target's share of a batch: its changes whose commit is not below `after`.

    `renames` has the names by which to read a shape's columns where the target's are not the stream's. `own` are the
    shapes of the stream, and how to read each, where every change keeps its own shape; otherwise all changes get the
    target's. With a `recipe`, it makes the target's rows. `whole` says that the destination may not have the rows that
    changes refer to: they are written as whole rows, with the unsent values as the source has them now.
    """

    destination: str
    target: Target
    after: Lsn
    renames: Renames = ()
    own: OwnShapes = field(default_factory=dict)
    recipe: Recipe | None = None
    whole: bool = False

    @property
    def reads(self) -> TableSchema:
        """The table as its changes are read."""
        return self.recipe.reads if self.recipe else self.target.source
