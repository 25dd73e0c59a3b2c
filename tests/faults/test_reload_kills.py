"""SIGKILL in the midst of a reload, under load: the next start has the new files; nothing is lost or doubled (I4)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator

import pytest

from fixtures.compare import same
from fixtures.pg import Database
from fixtures.project import ProjectFolder, TruckerProcess, postgres, run_cli
from fixtures.waiting import wait_until

Start = Callable[..., TruckerProcess]

TABLES = ("orders", "items", "later")
# Those of the start of a source are passed a second time by its reload.
POINTS = (
    "reload.stop.before",
    "reload.stop.after",
    "reload.start.before",
    "setup.publication.before@2",
    "setup.publication.after@2",
    "setup.log.after@2",
    "reload.start.after",
)


@pytest.fixture
def shop(project: ProjectFolder, database: Database, destination: Database) -> ProjectFolder:
    for table in TABLES:
        database.execute(
            f"create table {table} (id bigint generated always as identity primary key, note text)",
            f"insert into {table} (note) select 'n' || i from generate_series(1, 100) i",
        )
    project.connect(postgres("replica", destination))
    for table in TABLES[:2]:
        project.truck(table, [f"public.{table}"], {"connection": "replica"})
    return project


@pytest.fixture
def load(shop: ProjectFolder, database: Database) -> Iterator[Callable[[], None]]:
    """Rows are inserted and updated all the while; a call ends that."""
    stop = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            while not stop.wait(0.005):
                for table in TABLES:
                    connection.execute(f"insert into {table} (note) values ('w')".encode())
                    connection.execute(f"update {table} set note = note || '.' where id % 50 = 1".encode())

    thread = threading.Thread(target=write)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    yield end
    end()


@pytest.mark.timeout(600)
def test_killed_at_every_step_of_a_reload(
    shop: ProjectFolder, database: Database, destination: Database, load: Callable[[], None], start: Start
) -> None:
    """A truck comes and goes by turns, so that each reload has to stop and to start the source."""
    later = shop.folder / "trucks" / "later"
    for point in POINTS:
        name, _, nth = point.partition("@")
        trucker = start(failpoints=f"{name}=kill@{nth or 1}")
        trucker.wait_streaming(120)
        if later.exists():
            shutil.rmtree(later)
        else:
            shop.truck("later", ["public.later"], {"connection": "replica"})
        reload = run_cli("reload", str(shop.folder))
        assert reload.returncode == 1, reload.stdout
        assert "[TRK616]" in reload.stderr
        assert trucker.process.wait(60) == -9, trucker.output()
    shop.truck("later", ["public.later"], {"connection": "replica"})
    trucker = start()
    trucker.wait_streaming(120)
    load()
    wait_until(lambda: same(database, destination, *TABLES), 60)
    assert trucker.stop() == 0, trucker.output()
