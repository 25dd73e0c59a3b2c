"""All conditions, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trucker.engine.project.conditions import abilities, destination, destination_tables, history, source, state, trucks
from trucker.engine.project.conditions.condition import Condition, failure
from trucker.engine.project.conditions.situation import Situation
from trucker.errors import TruckerError
from trucker.file_errors import all_explained
from trucker.finding import Finding, Level

DESCRIBED: Final = (
    Condition("the project's files are well-formed", trucks.well_formed),
    Condition("the files of trucks have names that are used", trucks.named_files),
    Condition("the source can be read and published", source.usable),
    Condition("the change log's storage answers", history.storage),
    Condition("the destination answers", destination.reachable),
    Condition("the destination can be written", destination.writable),
    Condition("no dead letters wait", destination.letters),
    Condition("no two trucks write one table, and none writes an input", trucks.outputs),
    Condition("the destination is able to keep the tables", abilities.sufficient),
    Condition("rules fit their tables", trucks.rules),
    Condition("rules and SQL files fit the databases", trucks.sql, sound=True),
)
"""What the project says, held against the databases. `trucker try` asks for no more."""

CONDITIONS: Final = (
    Condition("the state folder can be written", state.writable),
    Condition("the change log's folder can be written", state.log_writable),
    Condition("other accounts cannot read the state folder", state.private),
    *DESCRIBED,
    Condition("the publication is as the last run left it", source.unaltered),
    Condition("slot, change log and stored positions continue each other", history.continuous),
    Condition("the change log is whole", history.whole),
    Condition("the destination's tables are those that were filled", destination_tables.tables),
    Condition("the destination's tables can take the rows", destination.tables),
)
"""Everything that a start needs."""

OF_STORAGE: Final = frozenset({"TRK310", "TRK311"})


def walk(situation: Situation, conditions: Sequence[Condition] = CONDITIONS) -> list[Finding]:
    """All that is found, each once: a fault that is in the way of several conditions is one finding."""
    findings: list[Finding] = []
    for condition in conditions:
        if condition.sound and has_errors(finding for finding in findings if not finding.waits):
            continue
        try:
            with all_explained():
                findings += condition.look(situation)
        except TruckerError as error:  # one that cannot be looked at hides none of the others
            findings.append(failure(condition.name, error))
    once: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        once.setdefault(_fault(finding), finding)
    return list(once.values())


def _fault(finding: Finding) -> tuple[object, ...]:
    """What is the same in findings that tell of one fault. Storage that refuses does so for every file of the log."""
    if finding.level is not Level.ERROR:
        return (finding,)
    return (finding.code,) if finding.code in OF_STORAGE else (finding.code, finding.message)


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.ERROR for finding in findings)
