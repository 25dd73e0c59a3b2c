"""Unique constraints of the destination other than the key.

A batch is the net of many transactions, so that its rows may take values from each other: one gives up an address that
another one takes, or two swap theirs. PostgreSQL checks a unique index row by row, unless it belongs to a constraint
that is deferred, and would refuse what was legal step by step at the source. So the rows that stand in the way of
others, and are themselves written in the batch, leave the table first and come back as they are to be.

That is not done where it would show: where a foreign key refers to the table and is not deferred (its action would
follow, or refuse), and where the table has columns that the batch does not bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trucker.table import quote_identifier

PARKED: Final = -1
"""The staged row's own row was taken out of the table and has to come back."""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index that is checked at once: what it is over, as SQL on the table's columns, and how it compares.

    `columns` are all that it depends on, `names` those that it is over as they are, in its order.
    """

    columns: frozenset[str]
    names: tuple[str, ...]
    expressions: tuple[str, ...]
    operators: tuple[str, ...]
    predicate: str | None
    nulls_equal: bool

    @classmethod
    def of(
        cls,
        columns: Sequence[str],
        names: Sequence[str],
        expressions: Sequence[str],
        operators: Sequence[str],
        predicate: str | None,
        nulls_equal: bool,
    ) -> UniqueIndex:
        """From a row of `INDEXES`."""
        return cls(frozenset(columns), tuple(names), tuple(expressions), tuple(operators), predicate, nulls_equal)

    @property
    def plain(self) -> bool:
        """Whether it is over columns alone, and all rows."""
        return self.predicate is None and len(self.names) == len(self.expressions)

    def seen(self, key: Sequence[str], rows: str) -> str:
        """The rows it is over, with the key's columns as q0, q1, … and its expressions as e0, e1, …"""
        listed = [f"{quote_identifier(name)} as q{i}" for i, name in enumerate(key)]
        listed += [f"({expression}) as e{i}" for i, expression in enumerate(self.expressions)]
        where = f" where {self.predicate}" if self.predicate else ""
        return f"select {', '.join(listed)} from {rows} r{where}"

    def meets(self, one: str, other: str) -> str:
        """The condition that rows `one` and `other`, with the expressions as e0, e1, …, cannot both be."""
        pairs = [(f"{one}.e{i}", operator, f"{other}.e{i}") for i, operator in enumerate(self.operators)]
        same = [f"{left} {operator} {right}" for left, operator, right in pairs]
        if self.nulls_equal:
            same = [
                f"({equal} or {left} is null and {right} is null)"
                for equal, (left, _, right) in zip(same, pairs, strict=True)
            ]
        return " and ".join(same)


INDEXES: Final = """
select array(select a.attname::text from pg_attribute a
        where a.attrelid = i.indrelid and a.attnum > 0 and (
            a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])
            or (i.indpred is not null or i.indexprs is not null) and exists (
                select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
                    and d.refclassid = 'pg_class'::regclass and d.refobjid = i.indrelid
                    and d.refobjsubid = a.attnum))),
    array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(number, place)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
        where k.place <= i.indnkeyatts order by k.place),
    array(select pg_get_indexdef(i.indexrelid, n, true) from generate_series(1, i.indnkeyatts) n order by n),
    array(select format('operator(%I.%s)', s.nspname, o.oprname)
        from unnest(i.indclass::oid[]) with ordinality k(class, place)
        join pg_opclass c on c.oid = k.class
        join pg_amop e on e.amopfamily = c.opcfamily and e.amopstrategy = 3
            and e.amoplefttype = c.opcintype and e.amoprighttype = c.opcintype
        join pg_operator o on o.oid = e.amopopr
        join pg_namespace s on s.oid = o.oprnamespace
        order by k.place),
    pg_get_expr(i.indpred, i.indrelid, true),
    coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
from pg_index i
where i.indrelid = $1::oid and i.indisunique and i.indisvalid and i.indimmediate and not i.indisexclusion
order by i.indexrelid"""
"""The table's unique indexes that are checked at once, as `UniqueIndex` has them."""

REFERRED: Final = """
select exists (select from pg_constraint
    where confrelid = $1::oid and contype = 'f' and not (condeferred and confdeltype = 'a'))"""
"""Whether a row that leaves the table and comes back within a transaction would be missed."""
