"""A sink class of a program as a destination: what can be sent to workers, and what is refused with the remedy."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fixtures.queue_sink import QueueSink
from trucker import ConfigError, Pipeline, Sink, SinkConnection, Workspace
from trucker.config.registry import adapter_of, installed
from trucker.sinks.events import EventSink
from trucker.sinks.factory import make_sink
from trucker.testing.memory_events import MemoryEventSink

WORKSPACE = Workspace("project", Path("unused"))


class Unfinished(QueueSink):
    """Not one that can be made: a method is missing."""

    store = EventSink.store


class Unnamed(QueueSink):
    """Its name is missing."""

    name = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    yield
    installed.cache_clear()


def pipeline(sink: Any, tmp_path: Path, **options: Any) -> Pipeline:
    return Pipeline({"host": "h"}, sink, name="sales", tables="public.*", state=tmp_path, **options)


def test_a_class_with_its_arguments_is_a_destination(tmp_path: Path) -> None:
    config = pipeline(partial(QueueSink, tmp_path / "queue"), tmp_path).config
    connection = config.connection("sink")
    adapter = adapter_of(connection)
    assert adapter.abilities == QueueSink.abilities
    assert isinstance(make_sink(connection, WORKSPACE, adapter.sink_component), QueueSink)


def test_a_connection_of_a_class_can_have_a_name(tmp_path: Path) -> None:
    connection = SinkConnection(name="queue", sink=partial(MemoryEventSink, "one"))
    assert isinstance(make_sink(connection, WORKSPACE), MemoryEventSink)
    config = pipeline(connection, tmp_path).config
    assert config.trucks[0].output.connection == "queue"


def test_a_copy_in_another_process_is_equal_so_that_sinks_are_kept_from_batch_to_batch(tmp_path: Path) -> None:
    connection = SinkConnection(name="queue", sink=partial(QueueSink, tmp_path))
    copy = pickle.loads(pickle.dumps(connection))
    assert copy == connection
    assert hash(copy) == hash(connection)
    assert copy != SinkConnection(name="queue", sink=partial(QueueSink, tmp_path / "other"))


def test_arguments_are_not_shown() -> None:
    """I10: a password may be among them."""
    connection = SinkConnection(name="queue", sink=partial(MemoryEventSink, "hunter2"))
    assert "hunter2" not in repr(connection)
    assert "hunter2" not in str(connection)


def test_executors_of_a_cluster_are_asked_for_the_module(tmp_path: Path) -> None:
    pipeline(partial(QueueSink, tmp_path), tmp_path)
    assert QueueSink.__module__ in installed().foreign_modules()


def test_abilities_of_the_class_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a custom destination keeps no dead letters") as caught:
        pipeline(partial(QueueSink, tmp_path), tmp_path, on_error="dead_letter")
    assert caught.value.code == "TRK115"


def _local_class() -> type[Sink]:
    class Local(QueueSink):
        pass

    return Local


@pytest.mark.parametrize(
    ("sink", "message", "remedy"),
    [
        (_local_class(), "workers cannot import the sink test_sink_classes._local_class", "define Local in a module"),
        (MemoryEventSink("one", WORKSPACE), "an object of class MemoryEventSink", "sink=MemoryEventSink, or functools"),
        (QueueSink, "QueueSink cannot be made with a workspace: missing a required argument", "partial(QueueSink"),
        (partial(QueueSink, "a", "b"), "cannot be made with a workspace: too many positional", "partial(QueueSink"),
        (partial(QueueSink, threading.Lock()), "cannot be sent to Spark's workers: TypeError", "give texts"),
        (Unfinished, "Unfinished does not implement store", "add to the class: store"),
        (Unnamed, "Unnamed has no name", 'name = "…"'),
        (partial(print, "x"), "neither a connection nor a subclass of trucker.Sink", "inherits trucker.Sink"),
        ("postgresql://h/d", "neither a connection nor a subclass of trucker.Sink", "the keys of a connection"),
    ],
)
def test_what_workers_cannot_make_is_refused(sink: Any, message: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline(sink, tmp_path)
    assert caught.value.code == "TRK127"
    assert message in caught.value.message
    assert remedy in caught.value.remedy


PROGRAM = """
from fixtures.queue_sink import QueueSink
from functools import partial
from pathlib import Path
from trucker import Pipeline

class Here(QueueSink):
    pass

Pipeline({"host": "h"}, partial(Here, Path("x")), name="sales", tables="public.*", state="state")
"""


def test_a_class_of_the_program_itself_is_refused_with_the_remedy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n{PROGRAM}")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert "[TRK127] Spark's workers cannot import the sink __main__.Here" in done.stderr
    assert "define Here in a module, not inside a function, and import it from there" in done.stderr
