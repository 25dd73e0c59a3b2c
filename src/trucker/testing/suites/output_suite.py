"""The conformance suite of sinks that run a truck's output.sql; `sink_suite` says how to use it.

The SQL in it is what PostgreSQL and DuckDB have in common.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from trucker.change import DELETE, INSERT, UPDATE, Changes, CopiedRows, Lsn, TableId, TableSchema
from trucker.config.sql.sql_files import OUTPUT, SqlFile
from trucker.errors import TruckerError, TruckFailed
from trucker.sinks.batch import CARRIED, Batch, Phase, TableState, Work
from trucker.sinks.committer import Committer
from trucker.sinks.target import Target
from trucker.testing.handmade import TextRow, copied_rows_of, output_rows_of, schema_of, truncate
from trucker.testing.suites.sink_suite import ODD_NAMES, ODD_VALUES, START, SinkMeans

ORDERS = schema_of(TableId("public", "orders"), {"id": "integer", "qty": "integer", "note": "text"}, ["id"])
REFUNDS = schema_of(TableId("public", "refunds"), {"id": "integer", "qty": "integer", "note": "text"}, ["id"])

SUMS = "update totals set n = totals.n + r.qty from {{ rows }} where totals.id = r.id"
HISTORY = "insert into history select r.note, r.operation, (select count(*) from history) from {{ rows }}"
"""Each row has how many there were before its statement."""

InputRow = tuple[int, TextRow, int]


def output_target(sql: str, schema: TableSchema = ORDERS, truck: str = "main") -> Target:
    return Target(truck, schema, schema.table, statement=SqlFile(OUTPUT, f"trucks/{truck}/{OUTPUT}", sql))


def row(number: int, qty: int = 1, note: str | None = None) -> dict[str, str | None]:
    return {"id": str(number), "qty": str(qty), "note": note}


class OutputSqlSuite(SinkMeans):
    """For sinks whose destination runs SQL. Tables are made without a schema: where such names are by themselves."""

    def execute(self, *statements: str) -> None:
        """Run statements at the destination by other means than trucker."""
        raise NotImplementedError

    def query(self, statement: str) -> list[tuple[str | None, ...]]:
        """The rows a statement gives there, as text."""
        raise NotImplementedError

    def leftovers(self) -> int:
        """How many things that were staged are still there; nothing staged is there by itself."""
        return 0

    # -- means ---------------------------------------------------------------------------------------------------

    def made(self, *targets: Target) -> Committer:
        """An open sink whose targets have nothing yet and stream; totals 1 to 3 are 0, the history is empty."""
        self.execute(
            "create table totals (id integer, n integer)",
            "insert into totals values (1, 0), (2, 0), (3, 0)",
            "create table history (note varchar, operation varchar, before integer)",
        )
        return self.started(*targets)

    def rows_for(self, schema: TableSchema, *rows: InputRow, step: int = 1) -> Changes:
        return output_rows_of(schema, rows, lsn=Lsn(START + 0x100 * step - 8))

    def send(self, sink: Committer, target: Target, *rows: InputRow, step: int = 1) -> Batch:
        """One batch of one part with these rows."""
        return self.apply(sink, {target: [[self.rows_for(target.source, *rows, step=step)]]}, step)

    def totals(self) -> list[tuple[str | None, ...]]:
        return self.query("select n from totals order by id")

    def history(self) -> list[tuple[str | None, ...]]:
        return self.query("select note, operation, before from history order by before, note")

    def refused(self, sql: str, schema: TableSchema = ORDERS) -> TruckerError:
        """Why the file is refused before anything is run."""
        sink = self.committer()
        sink.open()
        with pytest.raises(TruckerError) as caught:
            sink.prepare(output_target(sql, schema))
        sink.close()
        return caught.value

    # -- exactly once (I3, I4) -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("room", [CARRIED, 0])
    def test_a_sum_counts_every_row_once(self, room: int) -> None:
        """Carried or staged apart, written twice, committed again by another process: `n = n + …` is added once."""
        target = output_target(SUMS)
        sink = self.made(target)
        batch = self.batch([target])
        values = [self.rows_for(ORDERS, (INSERT, row(1, 5), 0)), self.rows_for(ORDERS, (UPDATE, row(2, 7), 0))]
        self.write_part(Work(batch, target, 0, room), values)
        receipts = [self.write_part(Work(batch, target, 0, room), values)]
        sink.commit(batch, receipts)
        assert self.totals() == [("5",), ("7",), ("0",)]
        again = self.committer()
        again.open()
        again.commit(batch, receipts)
        again.commit(batch, self.write(batch, {target: [values]}))
        assert self.totals() == [("5",), ("7",), ("0",)]
        assert again.open()["main"].lsn == batch.end
        self.send(again, target, (DELETE, row(1, -5), 0), step=2)
        assert self.totals() == [("0",), ("7",), ("0",)]
        assert self.leftovers() == 0

    def test_a_write_without_commit_does_nothing(self) -> None:
        target = output_target(SUMS)
        sink = self.made(target)
        batch = self.batch([target])
        values = [self.rows_for(ORDERS, (INSERT, row(1, 5), 0))]
        for room in (CARRIED, 0):
            self.write_part(Work(batch, target, 0, room), values)
        sink.close()
        again = self.committer()
        again.open()
        assert self.totals() == [("0",), ("0",), ("0",)]
        assert self.leftovers() == 0
        self.send(again, target, (INSERT, row(1, 3), 0))
        assert self.totals() == [("3",), ("0",), ("0",)]

    def test_nothing_of_a_batch_stays_when_a_statement_fails(self) -> None:
        """I8: its truck is named, and the same batch without it can be committed; the message has no row's data."""
        bad = output_target(f"{SUMS};\ninsert into totals select cast(r.note as integer), 0 from {{{{ rows }}}}")
        good = output_target(HISTORY, REFUNDS, "other")
        sink = self.made(bad, good)
        batch = self.batch([bad, good])
        secret = "no number at all"
        receipts = self.write(
            batch,
            {
                bad: [[self.rows_for(ORDERS, (INSERT, row(1, 5, secret), 0))]],
                good: [[self.rows_for(REFUNDS, (INSERT, row(1, 1, "fine"), 0))]],
            },
        )
        with pytest.raises(TruckFailed) as caught:
            sink.commit(batch, receipts)
        assert caught.value.truck == "main"
        assert "trucks/main/output.sql:2" in caught.value.message
        assert secret not in str(caught.value)
        assert self.totals() == [("0",), ("0",), ("0",)]
        assert self.history() == []
        rest = replace(batch, positions={"other": batch.end}, targets=(good,))
        sink.commit(rest, [receipt for receipt in receipts if receipt.truck == "other"])
        assert self.history() == [("fine", "insert", "0")]

    # -- order ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("room", [CARRIED, 0])
    def test_parts_then_runs_then_tables(self, room: int) -> None:
        """Each statement has the rows of one run of one table; runs are counted over all tables of the truck."""
        orders, refunds = output_target(HISTORY), output_target(HISTORY, REFUNDS)
        sink = self.made(orders, refunds)
        batch = self.batch([orders, refunds])
        works = {
            (orders, 0): [(INSERT, row(1, note="a"), 0), (INSERT, row(2, note="b"), 0), (UPDATE, row(1, note="d"), 2)],
            (refunds, 0): [(INSERT, row(1, note="c"), 1), (INSERT, row(2, note="e"), 2)],
            (orders, 1): [(DELETE, row(1, note="f"), 0)],
            (refunds, 1): [(DELETE, row(1, note="g"), 3)],
        }
        receipts = [
            self.write_part(Work(batch, target, part, room), [self.rows_for(target.source, *rows)])
            for (target, part), rows in works.items()
        ]
        sink.commit(batch, receipts[::-1])
        assert self.history() == [
            ("a", "insert", "0"),
            ("b", "insert", "0"),
            ("c", "insert", "2"),
            ("d", "update", "3"),
            ("e", "insert", "4"),
            ("f", "delete", "5"),
            ("g", "delete", "6"),
        ]

    def test_a_run_may_come_in_several_values(self) -> None:
        target = output_target(HISTORY)
        sink = self.made(target)
        runs = ((INSERT, row(1, note="a"), 0),), ((INSERT, row(2, note="b"), 0), (INSERT, row(3, note="c"), 1))
        self.apply(sink, {target: [[self.rows_for(ORDERS, *rows) for rows in runs]]})
        assert self.history() == [("a", "insert", "0"), ("b", "insert", "0"), ("c", "insert", "2")]

    def test_very_many_runs(self) -> None:
        target = output_target(HISTORY)
        sink = self.made(target)
        rows = [(INSERT, row(n, note=f"{n:05}"), n) for n in range(300)]
        rows += [(INSERT, row(n, note=f"{n:05}"), 300) for n in range(300, 1_500)]
        self.apply(sink, {target: [[self.rows_for(ORDERS, *rows)]]})
        assert self.history() == [(f"{n:05}", "insert", str(min(n, 300))) for n in range(1_500)]

    def test_several_statements_and_operations(self) -> None:
        """A file that asks for the operation is run for each by itself: deletes, updates, inserts."""
        sql = (
            '{% if operation == "delete" %}\n'
            "delete from totals using {{ rows }} where totals.id = {{ new.id }};\n"
            "{% else %}\n-- the others; all of them\n"
            "insert into totals select r.id, r.qty from {{ rows }};\n{% endif %}\n"
            "insert into history select '{{ operation }} of {{ input_table }}', r.operation,"
            " (select count(*) from history) from {{ rows }};\n"
        )
        target = output_target(sql)
        sink = self.made(target)
        self.send(sink, target, (INSERT, row(4, 40), 0), (UPDATE, row(5, 50), 0), (DELETE, row(1), 0))
        assert self.query("select id, n from totals order by id") == [("2", "0"), ("3", "0"), ("4", "40"), ("5", "50")]
        assert self.history() == [
            ("delete of public.orders", "delete", "0"),
            ("update of public.orders", "update", "1"),
            ("insert of public.orders", "insert", "2"),
        ]
        self.send(sink, target, (DELETE, row(5), 0), step=2)
        assert self.query("select max(id) from totals") == [("4",)]

    def test_no_rows_no_statement(self) -> None:
        target = output_target("insert into history values ('run', null, 0)")
        sink = self.made(target)
        batch = self.apply(sink, {target: [[]]})
        assert self.history() == []
        assert self.committer().open()["main"].lsn == batch.end

    # -- snapshots (I6) ------------------------------------------------------------------------------------------

    def test_a_copy_waits_until_it_is_complete(self) -> None:
        """Then every chunk is written once, in order; a copy that broke off leaves nothing."""
        target = output_target(f"{SUMS};\n{HISTORY}")
        sink = self.made()
        self.begin_copy(sink, [target], name="broken")
        broken = self.copied([target], name="broken")
        self.write(broken, {target: [[copied_rows_of(ORDERS, [row(1, 100)])]]})
        sink.close()
        sink = self.committer()
        sink.open()
        self.begin_copy(sink, [target])
        copied_batch = self.copied([target])
        one, two = (output_rows_of(ORDERS, [(INSERT, row(n, n, note), 0)]) for n, note in ((1, "a"), (2, "b")))
        parts: list[list[Changes | CopiedRows]] = [
            [one, two],
            [],
            [copied_rows_of(ORDERS, [row(3, 3, "c"), row(4, 4, "d")])],
        ]
        self.write(copied_batch, {target: parts})
        receipts = self.write(copied_batch, {target: parts})
        assert self.totals() == [("0",), ("0",), ("0",)]
        sink.commit(copied_batch, receipts[::-1])
        sink.commit(copied_batch, receipts)
        assert self.totals() == [("1",), ("2",), ("3",)]
        assert self.history() == [
            ("a", "insert", "0"),
            ("b", "insert", "0"),
            ("c", "insert", "2"),
            ("d", "insert", "2"),
        ]
        state = self.committer().open()["main"]
        assert (state.lsn, state.tables[ORDERS.table].phase) == (START, Phase.STREAMING)
        assert self.leftovers() == 0

    def test_a_table_is_copied_again_after_a_reset_only(self) -> None:
        """What a statement made of the rows cannot be taken back: only who resets the truck says that it was."""
        target = output_target(SUMS)
        sink = self.made(target)
        truck_table = (target.truck, ORDERS.table)
        sink.commit(Batch(START, START, tables={truck_table: TableState(Phase.COPYING, Lsn(0))}), [])
        with pytest.raises(TruckFailed) as caught:
            self.begin_copy(sink, [target], name="again")
        assert caught.value.code == "TRK484"
        sink.commit(Batch(Lsn(0), Lsn(0), forget=("main",)), [])
        self.copy(sink, {target: [[copied_rows_of(ORDERS, [row(1, 4)])]]}, name="after")
        assert self.totals() == [("4",), ("0",), ("0",)]

    def test_rows_already_in_a_table_are_nobodys_business(self) -> None:
        sink = self.committer()
        sink.open()
        self.execute("create table orders (id integer)", "insert into orders values (1)")
        target = output_target("insert into orders select r.id from {{ rows }}")
        self.copy(sink, {target: [[copied_rows_of(ORDERS, [row(2)])]]})
        assert self.query("select id from orders order by id") == [("1",), ("2",)]

    # -- checked before it runs (I11) ----------------------------------------------------------------------------

    def test_nothing_may_end_the_transaction(self) -> None:
        self.execute("create table totals (id integer, n integer)")
        for statement in ("commit", "COMMIT work", "rollback", "begin", "/* now */ abort", "end"):
            error = self.refused(f"{SUMS};\n\n  -- then\n  {statement};\n{SUMS}")
            assert error.code == "TRK481", statement
            assert "trucks/main/output.sql:4" in error.message, statement

    def test_a_misspelt_column(self) -> None:
        self.execute("create table totals (id integer, n integer)")
        error = self.refused("update totals set n = 1;\nupdate totals set n = totals.n\n  + r.qtty from {{ rows }}")
        assert "trucks/main/output.sql:3" in error.message
        assert '"qty"' in error.remedy
        error = self.refused("update totals\nset n = {{ new.idd }} from {{ rows }}")
        assert "trucks/main/output.sql:2" in error.message
        assert '"id"' in error.remedy

    def test_a_table_that_is_not_there(self) -> None:
        error = self.refused("-- first\ninsert into nowhere select r.id from {{ rows }}")
        assert "trucks/main/output.sql:2" in error.message
        assert "nowhere" in error.message

    def test_every_operation_is_checked(self) -> None:
        error = self.refused('select 1;\n{% if operation == "update" %}\nselect from where;\n{% endif %}')
        assert "trucks/main/output.sql:3" in error.message

    def test_what_the_file_makes_itself_is_not_missed(self) -> None:
        sql = "create table if not exists made (id integer);\ninsert into made select r.id from {{ rows }}"
        target = output_target(sql)
        sink = self.started(target)
        self.send(sink, target, (INSERT, row(7), 0))
        assert self.query("select id from made") == [("7",)]

    def test_checking_runs_nothing(self) -> None:
        target = output_target("insert into history values ('checked', null, 0)")
        self.made(target)
        assert self.history() == []

    def test_a_file_without_a_statement(self) -> None:
        assert "no statement" in self.refused("-- to be written\n").message

    def test_a_column_called_operation(self) -> None:
        schema = schema_of(TableId("public", "odd"), {"id": "integer", "operation": "text"}, ["id"])
        assert "operation" in self.refused("select 1 from {{ rows }}", schema).message

    # -- values and names ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("room", [CARRIED, 0])
    def test_odd_values_and_names_are_data(self, room: int) -> None:
        """No name and no value becomes SQL."""
        names = [*ODD_NAMES, 'x" from history) as r; drop table history; --', "{{ rows }}"]
        schema = schema_of(
            TableId("public", "it's; drop table history"), {"id": "integer", **dict.fromkeys(names, "text")}, ["id"]
        )
        count = len(names) + 1  # the last one of `new` is the operation
        some = f"{{% for column in new %}}{{% if loop.index <= {count} %}}, {{{{ column }}}}{{% endif %}}{{% endfor %}}"
        sql = f"insert into odd select r.operation{some} from {{{{ rows }}}}"
        columns = ", ".join(f"c{number} varchar" for number in range(count))
        self.execute(f"create table odd (operation varchar, {columns})", "create table history (note varchar)")
        target = output_target(sql, schema)
        sink = self.started(target)
        rows: list[InputRow] = [
            (INSERT, {"id": str(n), **dict.fromkeys(names, value)}, 0) for n, value in enumerate(ODD_VALUES)
        ]
        batch = self.batch([target])
        sink.commit(batch, [self.write_part(Work(batch, target, 0, room), [self.rows_for(schema, *rows)])])
        stored = self.query("select * from odd order by cast(c0 as integer)")
        assert stored == [("insert", str(n), *[value] * len(names)) for n, value in enumerate(ODD_VALUES)]
        assert self.query("select count(*) from history") == [("0",)]

    def test_columns_are_typed(self) -> None:
        self.execute("create table typed (kind varchar)")
        target = output_target("insert into typed select 'sum ' || (r.qty + 1) from {{ rows }}")
        sink = self.started(target)
        self.send(sink, target, (INSERT, row(1, 41), 0))
        assert self.query("select kind from typed") == [("sum 42",)]

    # -- what cannot be told to a statement ----------------------------------------------------------------------

    def test_a_truncate_is_refused(self) -> None:
        target = output_target(SUMS)
        self.made(target)
        with pytest.raises(TruckerError) as caught:
            self.write(self.batch([target]), {target: [[self.values(ORDERS, truncate())]]})
        assert caught.value.code == "TRK482"
        assert "on_truncate: ignore" in caught.value.remedy

    def test_a_truck_does_not_change_between_table_and_statement_unnoticed(self) -> None:
        target = output_target(SUMS)
        sink = self.made(target)
        plain = Target("main", ORDERS, ORDERS.table)
        sink.prepare(plain)
        batch = self.batch([plain])
        with pytest.raises(TruckFailed) as caught:
            sink.commit(batch, self.write(batch, {plain: [[self.values(ORDERS)]]}))
        assert caught.value.code == "TRK418"
