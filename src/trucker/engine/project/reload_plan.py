"""Compares the files of a project with what its running instance was started with. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trucker.config.adapter import Connection
from trucker.config.models import ProjectConfig, ProjectFile, TruckConfig
from trucker.config.sql.sql_files import FUNCTIONS
from trucker.engine.spark.session_future import has_spark_sql
from trucker.errors import ConfigError, ControlError

_SQL: Final = frozenset({"rules", "lookups"})
_NOT_SETTINGS: Final = frozenset({"folder", "files", "functions", "code"})


@dataclass(frozen=True, slots=True)
class TruckText:
    """A truck as its files say: its settings, and its SQL with rules, lookups and functions."""

    settings: Mapping[str, Any]
    sql: Mapping[str, Any]


def truck_texts(config: ProjectConfig) -> dict[str, TruckText]:
    """Every truck of a project as its files say now. Functions are read here: a configuration does not hold them."""
    return {truck.name: _text(truck) for truck in config.trucks}


def _text(truck: TruckConfig) -> TruckText:
    settings = truck.model_dump(exclude=set(_NOT_SETTINGS))
    sql = {name: settings.pop(name) for name in _SQL}
    sql |= {file.name: file.text for file in truck.files}
    functions = truck.folder / FUNCTIONS if truck.folder is not None else None
    if functions is not None and functions.is_file():
        sql[FUNCTIONS] = functions.read_bytes()
    return TruckText(settings, sql)


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The configuration that is to be in force, and what is new in it: trucks and sources by name."""

    config: ProjectConfig
    texts: Mapping[str, TruckText]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    new_sql: tuple[str, ...]
    sources: frozenset[str]
    """The sources that a truck of these reads from, or read from."""


def plan_reload(
    now: ProjectConfig, texts: Mapping[str, TruckText], files: ProjectConfig, *, only: str | None, go_on: bool
) -> ReloadPlan:
    """What is to be taken up of `files`; of one truck where `only` names it.

    Raises `ControlError` for what needs a restart, and for changed SQL unless the trucks are to `go_on` with it.
    """
    _refuse_settings(now, files)
    config = files if only is None else _with_truck(now, files, only)
    fresh = truck_texts(files) if only is None else {**texts, **truck_texts(files)}
    after = {t.name: fresh[t.name] if only in (None, t.name) else texts[t.name] for t in config.trucks}
    added, removed = _names(after.keys() - texts.keys()), _names(texts.keys() - after.keys())
    both = after.keys() & texts.keys()
    changed = _names(name for name in both if after[name] != texts[name])
    new_sql = _names(name for name in both if after[name].sql != texts[name].sql)
    if new_sql and not go_on:
        _refuse_sql(new_sql, only)
    if has_spark_sql(config.trucks) and not has_spark_sql(now.trucks):
        raise _needs_restart("SQL for Spark, which no truck had when the instance was started")
    touched = {*added, *removed, *changed}
    sources = {truck.input.connection for each in (now, config) for truck in each.trucks if truck.name in touched}
    return ReloadPlan(config, after, added, removed, changed, new_sql, frozenset(sources))


def _with_truck(now: ProjectConfig, files: ProjectConfig, name: str) -> ProjectConfig:
    """As the project is now, with one truck as the files have it."""
    if name not in {truck.name for each in (now, files) for truck in each.trucks}:
        names = ", ".join(truck.name for truck in files.trucks)
        raise ConfigError(f"there is no truck {name!r}", remedy=f"name one of {names}")
    trucks = [truck for truck in now.trucks if truck.name != name]
    trucks += [truck for truck in files.trucks if truck.name == name]
    return files.model_copy(update={"trucks": tuple(sorted(trucks, key=lambda truck: truck.name))})


def _refuse_settings(now: ProjectConfig, files: ProjectConfig) -> None:
    """Only trucks can be taken up, and connections that are new."""
    changed = [name for name in ProjectFile.model_fields if name != "connections" and _differs(now, files, name)]
    before = {connection.name: connection for connection in now.connections}
    for connection in files.connections:
        if connection.name in before and connection != before[connection.name]:
            keys = ", ".join(_changed_keys(before[connection.name], connection))
            changed.append(f"connection {connection.name} ({keys})")
    if changed:
        raise _needs_restart(", ".join(changed))


def _differs(now: ProjectConfig, files: ProjectConfig, name: str) -> bool:
    return bool(getattr(now, name) != getattr(files, name))


def _changed_keys(before: Connection, after: Connection) -> Iterator[str]:
    """The keys alone: a value may be a password (I10)."""
    if type(before) is not type(after):
        yield "adapter"
        return
    for name, field in type(after).model_fields.items():
        if getattr(before, name) != getattr(after, name):
            yield field.alias or name
    carried, now = before.carried(), after.carried()
    yield from sorted(label for label in {*carried, *now} if carried.get(label) != now.get(label))


def _needs_restart(what: str) -> ControlError:
    return ControlError(
        f"the running instance cannot take up a change of {what}: nothing was changed",
        remedy="restart it: `trucker stop`, then `trucker run`; or undo that change, then run `trucker reload` again",
        code="TRK612",
    )


def _refuse_sql(trucks: tuple[str, ...], only: str | None) -> None:
    names = ", ".join(trucks)
    which = f"truck {names}" if len(trucks) == 1 else f"trucks {names}"
    reload = "trucker reload" + (f" --truck {only}" if only else "")
    refresh = ", ".join(f"`trucker refresh {name}`" for name in trucks)
    raise ControlError(
        f"the SQL, the rules, the lookups or the functions of {which} changed; rows that were written before stay as "
        "they are: nothing was changed",
        remedy=f"to go on with the new ones from the current position: `{reload} --on-sql-change go-on`; "
        f"for the rows that were written before to go through them as well: then {refresh}",
        code="TRK613",
    )


def _names(names: Any) -> tuple[str, ...]:
    return tuple(sorted(names))
