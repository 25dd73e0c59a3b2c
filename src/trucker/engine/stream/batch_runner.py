"""Runs the parts of a batch: as a Spark job, or in the driver where the batch is small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from trucker.changelog.format.reference import BlockRef
from trucker.changelog.reader import LogReader
from trucker.engine.destination.destination import Destination
from trucker.engine.spark.jobs import Jobs
from trucker.engine.spark.outcome_stream import OutcomeStream
from trucker.engine.stream.stream_task import stream_part
from trucker.engine.task.partition import consecutive, joined, room
from trucker.engine.task.payload import Outcome, StreamBatch, StreamPart
from trucker.engine.task.waiting_rows import finish
from trucker.engine.transform.assignment import Assignment
from trucker.engine.transform.recipe_compiler import Recipes
from trucker.lsn import Lsn
from trucker.sinks.batch import Batch
from trucker.source.base import Source

# So that the first parts are applied while the last are made.
PARTS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True)
class Staging:
    """What is to be staged of a range of the log, which ends at `end` and has so many `bytes`, and how it is cut."""

    batch: StreamBatch
    parts: Sequence[StreamPart]
    bytes: int
    end: Lsn

    def same(self, other: Staging) -> bool:
        """Whether the tasks would do the same."""
        mine, others = self.batch, other.batch
        return (
            self.parts == other.parts
            and mine.batches == others.batches
            and mine.sinks == others.sinks
            and mine.room == others.room
            and _by_target(mine.assignments) == _by_target(others.assignments)
        )

    @property
    def with_spark_sql(self) -> bool:
        """Whether some rows wait for Spark SQL when the tasks are done."""
        return any(each.recipe is not None and each.recipe.spark is not None for each in self.batch.assignments)


def _by_target(assignments: Sequence[Assignment]) -> Mapping[tuple[str, str, str], Assignment]:
    return {(a.destination, a.target.truck, str(a.target.source.table)): a for a in assignments}


class BatchRunner:
    """For one source. May be called from several threads."""

    def __init__(
        self,
        jobs: Jobs,
        destinations: Mapping[str, Destination],
        recipes: Recipes,
        *,
        source: Source,
        part_bytes: int,
        small_bytes: int,
    ) -> None:
        self._jobs = jobs
        self._destinations = destinations
        self._recipes = recipes
        self._source = source
        self._part_bytes = part_bytes
        self.small_bytes = small_bytes
        self._fold_ratio = 1.0

    def plan(
        self,
        log: LogReader,
        blocks: Sequence[BlockRef],
        assignments: Sequence[Assignment],
        batches: Mapping[str, Batch],
        end: Lsn,
        first: int = 0,
    ) -> Staging:
        """How the blocks are to be staged for the assignments. `first` is the number of the first part."""
        pieces = consecutive(blocks, self._part_bytes, PARTS_PER_CORE * self._jobs.cores)
        # A recipe's queries are best asked side by side, whatever else there is to fold.
        with_recipe = [assignment for assignment in assignments if assignment.recipe]
        parts = joined(pieces, 1.0 if with_recipe else self._fold_ratio)
        parts = [replace(part, index=first + part.index) for part in parts] if first else parts
        batch = StreamBatch(
            log,
            {name: batch.for_parts() for name, batch in batches.items()},
            {name: self._destinations[name].spec for name in batches},
            assignments,
            room(len(pieces), len(assignments)),
            self._source if any(self._reads_source(assignment) for assignment in assignments) else None,
            self._recipes.folder,
        )
        return Staging(batch, parts, sum([block.bytes for block in blocks]), end)

    def _reads_source(self, assignment: Assignment) -> bool:
        """Whether a task may have to ask the source for an assignment."""
        abilities = self._destinations[assignment.destination].sink.abilities
        whole = assignment.whole or assignment.target.awaits_rows or assignment.target.uncopied
        return whole or assignment.recipe is not None or not (abilities.partial_rows or abilities.every_change)

    def run(self, staging: Staging) -> OutcomeStream[Outcome]:
        """Do it, or have it begun; Spark SQL is done with as well when this returns."""
        work = partial(stream_part, staging.batch)
        if staging.bytes <= self.small_bytes:
            outcomes = [work(part) for part in staging.parts]
        elif staging.with_spark_sql or len(staging.parts) == 1:
            outcomes = self._jobs.run(work, staging.parts)
        else:
            return self.start(staging)
        return OutcomeStream.done(finish(self._recipes, outcomes, staging.batch))

    def start(self, staging: Staging) -> OutcomeStream[Outcome]:
        """Have it begun by Spark."""
        assert not staging.with_spark_sql
        return self._jobs.start(partial(stream_part, staging.batch), staging.parts)

    def learn(self, staging: Staging, outcomes: Sequence[Outcome]) -> None:
        """See how much was folded, by which the next batches are cut. Small ones do not tell."""
        if staging.bytes > self.small_bytes:
            read = sum(outcome.read for outcome in outcomes)
            self._fold_ratio = sum(outcome.left for outcome in outcomes) / read if read else 1.0

    def bring_up_workers(self) -> None:
        """Have Spark start its Python workers, if they have not been needed yet: small batches do without."""
        if self.small_bytes:
            self._jobs.bring_up_workers()
