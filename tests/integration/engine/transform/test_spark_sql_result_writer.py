"""What Spark SQL gives reaches a destination, by the driver and by executors alike."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from fixtures.spark_trucks import TABLE, SparkTruckCase, columns, rows
from trucker.adapters.duckdb import DuckDBConnection
from trucker.change import Lsn, TableId, TableSchema
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.transform.spark_sql import spark_truck as truck_module
from trucker.engine.transform.spark_sql.spark_plan import spool_rows
from trucker.errors import TruckerError
from trucker.rows import OLD
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Phase, TableState, Work
from trucker.sinks.committer import Committer
from trucker.sinks.factory import make_sink
from trucker.sinks.target import Target

ORDERS = columns(id="integer", amount="numeric", state="text")


@pytest.mark.parametrize("few", [5_000, 0], ids=["few", "many"])
def test_results_are_staged_and_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(truck_module, "FEW_ROWS", few)
    case = SparkTruckCase(
        spark,
        tmp_path,
        {"transform.sql": "select coalesce(id, old__id) as id, amount, concat(state, '!') as state from {{ rows }}"},
    )
    file = tmp_path / "out.duckdb"
    spec = SinkSpec(
        DuckDBConnection(name="out", adapter="duckdb", path=file), Workspace("project", tmp_path / "staged")
    )
    plan = case.compile(ORDERS)
    given = tuple(column for column in plan.columns if not column.name.startswith(OLD))
    target = Target("orders", TableSchema(TABLE, given, ("id",)), TableId("main", "orders"))
    sink = Committer(make_sink(spec.connection, spec.workspace))
    sink.open()
    sink.prepare(target)
    changes = [
        [("insert", {"id": str(n), "amount": f"{n}.50", "state": "new"}) for n in range(100)],
        [
            ("update", {"id": "1", "amount": "7", "state": "paid", "old__id": "1"}),
            ("delete", {"old__id": "2"}),
            ("delete", {"old__id": "3"}),
        ],
    ]
    for number, own in enumerate(changes, 1):
        batch = Batch(
            Lsn(number * 100 - 100),
            Lsn(number * 100),
            {"orders": Lsn(number * 100)},
            {("orders", TABLE): TableState(Phase.STREAMING, Lsn(1))} if number == 1 else {},
            (target,),
        )
        waiting = spool_rows(case.spool, rows(ORDERS, *own), plan)
        receipt = case.truck.run(plan, waiting, Work(batch, target, 0), spec)
        waiting.discard()
        assert receipt is not None
        sink.commit(batch, [receipt])
    sink.close()
    with duckdb.connect(str(file), read_only=True) as connection:
        found = connection.execute('select id, amount, state from main."orders" where id < 4 order by id').fetchall()
        assert connection.execute('select count(*) from main."orders"').fetchall() == [(98,)]
    assert found == [(0, "0.50", "new!"), (1, "7", "paid!")]
    assert not case.spool.exists() or list(case.spool.iterdir()) == []


def test_sparks_log_tells_no_row(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: neither what a query says of a value, nor what a function does."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log = Path(jvm.System.getProperty("trucker.spark.log"))
    functions = "def upside(text: str) -> str:\n    raise ValueError('first\\n' + text)\n"
    before = len(log.read_text()) if log.exists() else 0
    for few, expression in ((0, "cast(state as int)"), (1, "upside(state)")):
        monkeypatch.setattr(truck_module, "FEW_ROWS", few)
        case = SparkTruckCase(
            spark,
            tmp_path,
            {"transform.sql": f"select {expression} as n from {{{{ rows }}}}"},
            functions=functions,
        )
        with pytest.raises(TruckerError):
            case.give(rows(ORDERS, ("insert", {"id": "1", "state": "4111-secret"})))
    written = log.read_text()[before:]
    assert "CAST_INVALID_INPUT" in written
    assert "4111-secret" not in written
