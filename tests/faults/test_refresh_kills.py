"""SIGKILL in the midst of a refresh, under load: the next start goes on with it; nothing is lost or doubled (I4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fixtures.compare import wait_same
from fixtures.load import changing
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres, run_cli
from fixtures.waiting import wait_until
from trucker.control.answers import RefreshState
from trucker.project import Project

Start = Callable[..., TruckerProcess]

POINTS = (
    "refresh.leave.before",
    "refresh.leave.after",
    "refresh.record.before@2",
    "refresh.record.after@2",
    "sink.commit.before@3",
    "sink.commit.after@3",
)


LOAD = (
    "insert into orders (note) values ('w')",
    "update orders set note = note || '.' where id % 50 = 1",
    "delete from orders where id % 97 = 5",
)


@pytest.mark.timeout(600)
def test_killed_at_every_step_of_a_refresh(
    project: ProjectFolder, database: Database, destination: Database, start: Start
) -> None:
    database.execute(
        "create table orders (id bigint generated always as identity primary key, note text)",
        "insert into orders (note) select 'n' || i from generate_series(1, 500) i",
    )
    project.connect(postgres("replica", destination))
    project.truck("orders", ["public.orders"], {"connection": "replica"})
    opened = Project.load(project.folder)
    trucker = start()
    trucker.wait_streaming(120)
    assert trucker.stop() == 0
    for point in POINTS:
        destination.execute(
            "update orders set note = 'damaged' where id % 3 = 0", "delete from orders where id % 4 = 0"
        )
        queued = run_cli("refresh", "orders", "--where", "id <= 500", "--project", str(project.folder))
        assert queued.returncode == 0, queued.stderr
        name, _, nth = point.partition("@")
        with changing(database, *LOAD, pause=0.005):
            trucker = start(failpoints=f"{name}=kill@{nth or 1}")
            assert trucker.process.wait(120) == -9, trucker.output()
            trucker = start()
            wait_until(lambda: opened.refreshes()[-1].is_over, 120)
        # Rows above 500 were damaged as well, and not asked for.
        ended = run_cli("refresh", "orders", "--where", "id > 500", "--wait", "--project", str(project.folder))
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
        assert {each.state for each in opened.refreshes()} == {RefreshState.DONE}
        wait_same(database, destination, "orders")
        assert trucker.stop() == 0, trucker.output()
