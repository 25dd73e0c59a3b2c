"""Rules of a truck (`config.rules`) for one of its tables: compiled once for each shape of it, applied to its changes.

    rules = compile_rules(truck.rules, schema)
    rules.schema            the table as it comes out: columns left out, renamed, added, of other types; the key's names
    rules.apply(changes)    the changes likewise, in as many passes over columns as there are rules

Rules run on net changes, or on each change alone where a truck keeps them all; rows of a copy are inserts. A truncate
passes as it is.
"""

from __future__ import annotations

from trucker.engine.transform.rules.ruleset import RuleSet, compile_rules

__all__ = ["RuleSet", "compile_rules"]
