"""What can be told of a handler.py from its text, with the line; nothing is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from trucker import Batcher, ConfigError, Handler, Pipeline, Project
from trucker.config.handler_file import HandlerText, handler_class, read_handler
from trucker.config.problems import ConfigErrors
from trucker.engine.project.reload_plan import plan_reload, truck_texts
from trucker.errors import ControlError

TRUCK = "input: {connection: source, table: items}\noutput: {connection: %s}\n"


def read(text: str) -> Any:
    return read_handler(HandlerText("t/handler.py", Path("/t/handler.py"), dedent(text)), {})


@pytest.mark.parametrize(
    ("text", "name", "batches"),
    [
        ("class A:\n    def on_insert(self, change): ...", "A", False),
        ("class A:\n    async def upsert(self, t, r): ...\n    async def delete(self, t, k): ...", "A", True),
        ("import trucker\nclass A(trucker.Batcher): ...", "A", True),
        ("from elsewhere import Base\nclass A(Base):\n    def on_commit(self, t): ...", "A", False),
        ("from trucker import Handler\nclass Base(Handler): ...\nclass A(Base): ...\nclass Other: ...", "A", False),
        ("class _Old:\n    def on_insert(self, c): ...\nclass A:\n    def on_insert(self, c): ...", "A", False),
        ("class A:\n    def on_insert(self, c): ...\n    def truncate(self, t): ...", "A", False),
    ],
)
def test_the_class_and_its_kind(text: str, name: str, batches: bool) -> None:
    code, errors = read(text)
    assert errors == []
    assert (code.name, code.batches) == (name, batches)


@pytest.mark.parametrize(
    ("text", "code", "place", "told"),
    [
        ("class A:\n  def on_insert(self c): ...", "TRK741", "t/handler.py:2", "it is not Python"),
        ("def on_insert(change): ...", "TRK741", "t/handler.py:1", "it defines no handler"),
        ("x = 1\0", "TRK741", "t/handler.py", "it is not Python"),
        (
            "class A:\n    def on_insert(self, c): ...\nclass B:\n    def on_insert(self, c): ...",
            "TRK741",
            "t/handler.py:3",
            "several handlers: A, B",
        ),
        ("class A:\n    def on_isnert(self, c): ...", "TRK742", "t/handler.py:2", "A.on_isnert is no event"),
        (
            "class A:\n    def on_insert(self, c): ...\n    def upsert(self, t, r): ...",
            "TRK742",
            "t/handler.py:1",
            "a handler (on_…) and a batcher",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, code: str, place: str, told: str) -> None:
    handler, (error,) = read(text)
    assert handler is None
    assert (error.code, str(error.place)) == (code, place)
    assert told in error.message


def test_a_misspelled_event_names_the_one_that_was_meant() -> None:
    _, (error,) = read("class A:\n    def on_isnert(self, c): ...")
    assert "did you mean on_insert?" in error.remedy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    connections = "{name: source, database: x}, {name: py, adapter: python}, {name: lines, adapter: jsonl, path: o}"
    (tmp_path / "trucker.yml").write_text(f"connections: [{connections}]\n")
    return tmp_path


def truck(folder: Path, name: str, handler: str | None, connection: str = "py", more: str = "") -> None:
    place = folder / "trucks" / name
    place.mkdir(parents=True)
    (place / "truck.yml").write_text(TRUCK % connection + more)
    if handler is not None:
        (place / "handler.py").write_text(handler)


EVENTS = "raise SystemExit\nclass A:\n    def on_insert(self, change): ...\n"
BATCHES = "class A:\n    def upsert(self, t, r): ...\n    def delete(self, t, k): ...\n"


def test_a_project_is_loaded_without_running_its_handlers(folder: Path) -> None:
    truck(folder, "a", EVENTS, more="handler: {url: 'http://search', size: 7}\n")
    project = Project.load(folder)
    connection: Any = project.config.connections[1]
    assert connection.handler("a").settings == {"url": "http://search", "size": "7"}
    assert connection.batches is False
    sent: Any = pickle.loads(pickle.dumps(connection))
    assert (sent.handler("a"), sent.batches) == (None, False), "executors need no handler.py"


@pytest.mark.parametrize(
    ("handler", "connection", "more", "code", "told"),
    [
        (None, "py", "", "TRK740", "the truck has no handler.py"),
        (EVENTS, "lines", "", "TRK740", "lines is a jsonl connection, which takes none"),
        (None, "lines", "handler: {a: 1}\n", "TRK740", '"handler" is for a handler.py'),
    ],
)
def test_a_handler_and_its_destination_belong_together(
    folder: Path, handler: str | None, connection: str, more: str, code: str, told: str
) -> None:
    truck(folder, "a", handler, connection, more)
    with pytest.raises(ConfigError) as caught:
        Project.load(folder)
    assert caught.value.code == code
    assert told in caught.value.message


def test_trucks_of_one_connection_have_handlers_of_one_kind(folder: Path) -> None:
    truck(folder, "a", EVENTS)
    truck(folder, "b", BATCHES)
    with pytest.raises(ConfigError, match="truck a writes to py, too") as caught:
        Project.load(folder)
    assert (caught.value.code, str(caught.value.place)) == ("TRK742", "trucks/b/handler.py")


def test_all_that_is_wrong_is_told_at_once(folder: Path) -> None:
    truck(folder, "a", "class A:\n    def on_this(self, c): ...\n    def on_that(self, c): ...\n")
    with pytest.raises(ConfigErrors) as caught:
        Project.load(folder)
    assert [error.code for error in caught.value.errors] == ["TRK742", "TRK742"]


def test_a_running_instance_cannot_take_up_another_handler(folder: Path) -> None:
    truck(folder, "a", EVENTS, more="handler: {password: secret}\n")
    before = Project.load(folder).config
    (folder / "trucks" / "a" / "handler.py").write_text(EVENTS + "# changed\n")
    after = Project.load(folder).config
    for files in (before, Project.load(folder).config):
        assert plan_reload(files, truck_texts(files), files, only=None, go_on=False).changed == ()
    with pytest.raises(ControlError) as caught:
        plan_reload(before, truck_texts(before), after, only=None, go_on=False)
    assert caught.value.code == "TRK612"
    assert "connection py (trucks/a/handler.py)" in caught.value.message
    assert "secret" not in str(caught.value)


class Mine(Batcher):
    def __init__(self, path: str = "") -> None:
        self.path = path


def test_a_pipeline_takes_a_class(tmp_path: Path) -> None:
    from functools import partial

    sink = partial(Mine, path="here")
    pipeline = Pipeline({"database": "x"}, sink, name="p", tables="items", state=tmp_path)
    connection: Any = pipeline.config.connections[1]
    assert (connection.name, connection.adapter, connection.batches) == ("sink", "python", True)
    assert connection.handler("p").kind is Mine


@pytest.mark.parametrize("value", [int, Mine(), print, "x", None])
def test_what_is_no_handler(value: object) -> None:
    assert handler_class(value) is None
    assert handler_class(Handler) is not None


def test_a_project_built_in_code_says_what_a_handler_must_be(tmp_path: Path) -> None:
    truck = {"name": "t", "input": {"connection": "s", "table": "x"}, "output": {"connection": "py"}}
    with pytest.raises(ConfigError, match="this is not a handler"):
        Project.build(
            name="p",
            state=tmp_path,
            connections=[{"name": "s", "database": "x"}, {"name": "py", "adapter": "python"}],
            trucks=[{**truck, "handler_class": int}],
        )
