"""Every mistake in a project's files is told with its place, one sentence and a next step."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.ordinary import ordinary_user
from trucker.config.problems import ConfigErrors
from trucker.config.project_folder import load_project
from trucker.errors import ConfigError

Mistakes = Callable[..., list[ConfigError]]
Write = Callable[..., Path]

DUCK = "  - {name: duck, adapter: duckdb, path: x}\n"


def told(error: ConfigError) -> tuple[str, str, str]:
    """Place, sentence, remedy."""
    place, message = str(error.place), error.message
    assert message.startswith(f"{place}: ")
    return place, message.removeprefix(f"{place}: "), error.remedy


@pytest.mark.parametrize(
    ("project", "place", "message", "remedy"),
    [
        ("connections:\n  - name: main\n    hots: x\n" + DUCK, "3:5", 'unknown key "hots"', 'did you mean "host"?'),
        (
            "connections:\n  - {name: main, password: x}\n" + DUCK,
            "2:18",
            'unknown key "password"',
            'did you mean "pass"?',
        ),
        (
            "connections:\n  - {name: main, zzzzzz: x}\n  - {name: duck, adapter: stdout, qqqqqq: 1}\n",
            "2:18",
            'unknown key "zzzzzz"',
            "use one of the keys name, adapter, host, port",
        ),
        (
            "connections:\n  - {name: main, port: 99999}\n" + DUCK,
            "2:24",
            '"port" must be at most 65535',
            "correct port (the server's port)",
        ),
        ("connections:\n  - {name: main, port: abc}\n" + DUCK, "2:24", '"port" must be a whole number', ""),
        ("connections:\n  - {name: main, host: ''}\n" + DUCK, "2:24", '"host" must not be empty', ""),
        ("connections:\n  - {name: main, host: [a]}\n" + DUCK, "2:24", '"host" must be text', ""),
        (
            "connections:\n  - name: main\n    host:\n" + DUCK,
            "3:5",
            '"host" has no value',
            "add a value, or remove",
        ),
        (
            "connections:\n  - {host: h}\n  - name: main\n" + DUCK,
            "2:5",
            '"name" is missing',
            ("add name (the name that trucks"),
        ),
        ("connections:\n  - {name: a/b}\n  - name: main\n" + DUCK, "2:12", '"name" must have at most 63 letters', ""),
        (
            "connections:\n  - {name: main, ssl: always}\n" + DUCK,
            "2:23",
            '"mode" must be one of disable, allow, prefer, require, verify-ca or verify-full',
            "",
        ),
        (
            "connections:\n  - name: main\n    ssl:\n      mod: require\n" + DUCK,
            "4:7",
            'unknown key "mod"',
            'did you mean "mode"?',
        ),
        (
            "connections:\n  - {name: main, adapter: postgre}\n" + DUCK,
            "2:27",
            "unknown adapter",
            'did you mean "postgres"? use one of postgres, duckdb, jsonl, ',
        ),
        (
            "connections:\n  - {name: main}\n  - {name: duck, adapter: duckdb}\n",
            "3:5",
            '"path" is missing',
            "add path (the database file",
        ),
        (
            "connections:\n  - {name: main}\n  - {name: Main}\n" + DUCK,
            "3:12",
            'another connection has the name "Main"',
            "the first is in line 2; give one of them another name",
        ),
        (
            "connections:\n  - name: main\n    pass: x\n    pass_path: y\n" + DUCK,
            "4:5",
            'the connection has both "pass" and "pass_path"',
            "remove one of them",
        ),
        (
            "connections:\n  - name: main\n    pass_path: absent\n" + DUCK,
            "3:16",
            'the file "absent" cannot be read: the file',
            "create ",
        ),
        (
            "connections:\n  - name: main\n    pass_path: [x]\n" + DUCK,
            "3:16",
            '"pass_path" must be a path',
            "",
        ),
        (
            "connections:\n  - name: main\n    url: postgres://h/d\n    host: h\n    pass: p\n" + DUCK,
            "4:5",
            "the connection has both url and host, pass",
            "remove url, or remove host, pass",
        ),
        (
            "connections:\n  - name: main\n    url: mysql://h/d\n" + DUCK,
            "3:5",
            "the url must begin with postgresql://",
            "write it as postgresql://",
        ),
        (
            "connections:\n  - name: main\n    url: postgres://h/d?sslmode=never\n" + DUCK,
            "3:10",
            '"mode" must be one of',
            "",
        ),
        (
            "connections:\n  - name: main\n    replica_user: u\n" + DUCK,
            "3:5",
            "replica_user is given without replica_host",
            "add replica_host",
        ),
        (
            "connections:\n  - name: main\n    parameters: {dbname: x}\n" + DUCK,
            "3:17",
            "parameters has a setting that libpq does not know",
            "use one of these settings: application_name",
        ),
        ("heartbeat: 1s\n", "1:1", '"connections" is missing', "write connections:"),
        ("# nothing\n", "1:1", '"connections" is missing', "write connections:"),
        ("connections: []\n", "1:1", '"connections" must be a list, and not empty', ""),
        ("connections:\n  main: {host: h}\n", "1:1", '"connections" must be a list, and not empty', "one - name: …"),
        (
            "connections:\n  - main\n",
            "2:5",
            "a connection must contain keys and values",
            "write its keys, such as name: …",
        ),
        ("x\n", "1:1", "the file must contain keys and values", "write key: value"),
        (
            "connections:\n  - name: main\n" + DUCK + "sparks: {}\n",
            "4:1",
            'unknown key "sparks"',
            'did you mean "spark"?',
        ),
        (
            "connections:\n  - name: main\n" + DUCK + "trucks: []\n",
            "4:1",
            'unknown key "trucks"',
            "use one of the keys",
        ),
        ("connections:\n  - name: main\n" + DUCK + "folder: x\n", "4:1", 'unknown key "folder"', "use one of the keys"),
        ("connections:\n  - name: main\n" + DUCK + "heartbeat: soon\n", "4:12", "this is not a duration", "30s, 12h"),
        ("connections:\n  - name: main\n" + DUCK + "heartbeat: -1\n", "4:12", "this is not a duration", ""),
        ("connections:\n  - name: main\n" + DUCK + "log:\n  keep: 3 furlongs\n", "5:9", "this is not a duration", ""),
        (
            "connections:\n  - name: main\n" + DUCK + "batch: {max_bytes: 1 XB}\n",
            "4:20",
            "this is not a size",
            "64 MiB",
        ),
        (
            "connections:\n  - name: main\n" + DUCK + "batch: {max_bytes: 0}\n",
            "4:20",
            '"max_bytes" must be more than 0',
            "",
        ),
        ("connections:\n  - name: main\n" + DUCK + "spark: local\n", "4:8", '"spark" must contain keys and values', ""),
        (
            "connections:\n  - name: main\n" + DUCK + "spark:\n  settings:\n    driver.memory: 2g\n",
            "6:5",
            "the name of a Spark setting must begin with spark.",
            "write its full name",
        ),
        (
            "connections:\n  - name: main\n" + DUCK + "retry: {first: 10s, longest: 1s}\n",
            "4:21",
            "longest is shorter than first",
            "",
        ),
    ],
)
def test_trucker_yml(mistakes: Mistakes, project: str, place: str, message: str, remedy: str) -> None:
    first = told(mistakes(project)[0])
    assert first[0] == f"shop/trucker.yml:{place}"
    assert first[1].startswith(message)
    assert remedy in first[2]
    assert first[2]


@pytest.mark.parametrize(
    ("truck", "place", "message", "remedy"),
    [
        (
            "input: {connection: main, table: a, copy: quick}\noutput: {connection: duck}\n",
            "1:43",
            "this is not a mode of copying",
            "write one of exported, incremental, auto, none, or a mapping",
        ),
        (
            "input: {connection: main, table: a, copy: {a: none, b: [auto]}}\noutput: {connection: duck}\n",
            "1:53",
            "this is not a mode of copying",
            "write one of exported, incremental, auto, none",
        ),
        (
            "input:\n  connection: main\n  table: a\n  copy:\n    a.b.c: none\noutput: {connection: duck}\n",
            "5:5",
            "this has more parts than schema and table",
            "write schema.table, or a pattern such as public.*",
        ),
        (
            "input: {connection: main, table: a, copy: {'!b': none}}\noutput: {connection: duck}\n",
            "1:44",
            "no table is excluded here",
            "",
        ),
        (
            "input: {connection: main, table: a, copy: {}}\noutput: {connection: duck}\n",
            "1:43",
            "the mapping names no table",
            "",
        ),
        (
            "input: {connection: mian, table: a}\noutput: {connection: duck}\n",
            "1:21",
            'there is no connection "mian"',
            'did you mean "main"? the connections are main, duck',
        ),
        (
            "input: {connection: main, table: a}\noutput: {connection: zzz}\n",
            "2:22",
            'there is no connection "zzz"',
            "the connections are main, duck",
        ),
        (
            "input: {connection: duck, table: a}\noutput: {connection: duck}\n",
            "1:21",
            '"duck" is a duckdb connection, which cannot be an input',
            "name a connection with the adapter postgres",
        ),
        (
            "input: {connection: main, table: a}\noutput: {connection: duck}\non_error: ignore\n",
            "3:11",
            '"on_error" must be one of stop or dead_letter',
            "",
        ),
        (
            "input:\n  connection: main\n  table: a\n  tables: [b]\noutput: {connection: duck}\n",
            "4:3",
            "the input has both table and tables",
            "remove one of them",
        ),
        (
            "input:\n  connection: main\noutput: {connection: duck}\n",
            "2:3",
            "the input names no table",
            "add table: schema.table, or tables: with patterns",
        ),
        (
            "input:\n  connection: main\n  table: public.*\noutput: {connection: duck}\n",
            "3:10",
            "a single table is required",
            "patterns go under tables",
        ),
        (
            "input:\n  connection: main\n  table: ''\noutput: {connection: duck}\n",
            "3:10",
            '"table" must not be empty',
            "",
        ),
        (
            "input:\n  connection: main\n  table: [a]\noutput: {connection: duck}\n",
            "3:10",
            '"table" must be text',
            "",
        ),
        (
            "input:\n  connection: main\n  tables:\n    - public.*\n    - a.b.c\noutput: {connection: duck}\n",
            "5:7",
            "this has more parts than schema and table",
            "write unusual names in double quotes",
        ),
        (
            "input: {connection: main, tables: ['!a']}\noutput: {connection: duck}\n",
            "1:35",
            "tables has only exclusions",
            "add a pattern of tables to read",
        ),
        (
            "input: {connection: main, tables: []}\noutput: {connection: duck}\n",
            "1:35",
            '"tables" must not be empty',
            "",
        ),
        (
            "input: {connection: main, tables: [a, a]}\noutput: {connection: duck}\n",
            "1:35",
            "the same name is listed twice",
            "remove one of them",
        ),
        (
            "input:\n  connection: main\n  table: a\n  only_columns: x\n  except_columns: y\noutput: {connection: a}\n",
            "5:3",
            "the input has both only_columns and except_columns",
            "remove one of them",
        ),
        (
            "input: {connection: main, table: a}\noutput:\n  connection: duck\n  table: b\n  schema: s\n",
            "5:3",
            "the output has both table and schema",
            "write schema.table",
        ),
        (
            "input: {connection: main, table: a}\noutput: {connection: duck, schema_: b}\n",
            "2:28",
            'unknown key "schema_"',
            'did you mean "schema"?',
        ),
        (
            "input: {table: a}\noutput: {connection: duck}\n",
            "1:8",
            '"connection" is missing',
            "add connection (the name of a connection in trucker.yml)",
        ),
        ("input: {connection: main, table: a}\n", "1:1", '"output" is missing', "add output (where the truck writes)"),
        (
            "source: {connection: main}\ninput: {connection: main, table: a}\noutput: {connection: duck}\n",
            "1:1",
            'unknown key "source"',
            'did you mean "input"?',
        ),
        (
            "name: x\ninput: {connection: main, table: a}\noutput: {connection: duck}\n",
            "1:1",
            'unknown key "name"',
            "use one of the keys input, output",
        ),
        (
            "input: {connection: main, table: a}\noutput:\n  connection: duck\n  columns: {x: {unfit: nul}}\n",
            "4:24",
            '"unfit" must be one of error, null or text',
            "correct unfit (what to do with a value",
        ),
        (
            "input: {connection: main, table: a}\noutput:\n  connection: duck\n  columns:\n    x:\n      unfit:\n",
            "6:7",
            '"unfit" has no value',
            "write error, null or text",
        ),
        (
            "input: {connection: main, table: a}\noutput:\n  connection: duck\n  columns: {x: {unfitt: text}}\n",
            "4:17",
            'unknown key "unfitt"',
            'did you mean "unfit"?',
        ),
        (
            "input: {connection: main, tabel: a}\noutput: {connection: duck}\n",
            "1:27",
            'unknown key "tabel"',
            'did you mean "table"?',
        ),
        (
            "input: {conection: main, table: a}\noutput: {connection: duck}\n",
            "1:9",
            'unknown key "conection"',
            'did you mean "connection"?',
        ),
        ("", "1:1", '"input" is missing', ""),
        ("input: main\noutput: {connection: duck}\n", "1:8", '"input" must contain keys and values', ""),
    ],
)
def test_truck_yml(mistakes: Mistakes, truck: str, place: str, message: str, remedy: str) -> None:
    first = told(mistakes(None, truck, files={"trucker.yml": "connections:\n  - name: main\n" + DUCK})[0])
    assert first[0] == f"shop/trucks/orders/truck.yml:{place}"
    assert first[1].startswith(message)
    assert remedy in first[2]
    assert first[2]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a:\n\t- b\n", "2:1", "a tab is used where YAML requires spaces"),
        ("a: b: c\n", "1:5", "a colon is used where YAML does not allow one"),
        ("a: 1\nb\nc: 2\n", "3:1", "a key has no colon after it"),
        ("a: *secret\n", "1:4", "a value begins with *, which marks an alias in YAML"),
        ("a: @secret\n", "1:4", "a value begins with a character that YAML reserves"),
        ("a: 'secret\n", "2:1", "a quote is never closed"),
        ('a: "\\secret"\n', "1:6", "a backslash begins an unknown escape sequence"),
        ("a: !secret x\n", "1:4", "YAML does not know this tag"),
        ("a: !sec!ret x\n", "1:4", "this is not valid YAML"),
        ("a: 1\n---\nb: 1\n", "2:1", "the file holds more than one YAML document"),
        ("a: 1\nb: 2\na: 3\n", "3:1", 'the key "a" is given twice'),
        ("[a]: 1\n", "1:1", "a key must be plain text"),
        ("a: &x [*x]\n", "1:4", "an alias refers to itself"),
        ("<<: 1\n", "1:5", "<< can only merge a mapping"),
        ("a: b\x07c\n", "1:5", "YAML does not allow this character"),
    ],
)
def test_yaml(mistakes: Mistakes, text: str, place: str, message: str) -> None:
    (error,) = mistakes(text)
    assert told(error)[:2] == (f"shop/trucker.yml:{place}", message)
    assert error.remedy
    assert "secret" not in str(error)


def test_not_utf8(write: Write) -> None:
    folder = write()
    (folder / "trucker.yml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"shop/trucker\.yml: the file is not UTF-8 text"):
        load_project(folder)


def test_unreadable(write: Write) -> None:
    folder = write()
    with ordinary_user(folder) as copy:
        load_project(copy)
        (copy / "trucker.yml").chmod(0)
        with pytest.raises(ConfigError, match="cannot be read: account"):
            load_project(copy)


def test_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_project(Path("nowhere"))
    assert told(caught.value) == (
        "nowhere",
        "the folder does not exist",
        ("create a project with `trucker init nowhere`"),
    )
    with pytest.raises(ConfigError) as caught:
        load_project(Path())
    assert told(caught.value)[:2] == ("trucker.yml", "the folder is not a project: it has no trucker.yml")
    assert "`trucker init .`" in caught.value.remedy
    Path("trucker.yaml").touch()
    with pytest.raises(ConfigError) as caught:
        load_project(Path())
    assert caught.value.remedy == "rename trucker.yaml to trucker.yml"


@pytest.mark.parametrize("adapter", ["{name: out, adapter: stdout}", "{name: out, adapter: jsonl, path: x}"])
def test_rows_that_cannot_be_refused_are_not_set_aside(mistakes: Mistakes, adapter: str) -> None:
    (error,) = mistakes(
        f"connections:\n  - {{name: main}}\n  - {adapter}\n",
        "input: {connection: main, table: a}\noutput: {connection: out}\non_error: dead_letter\n",
    )
    place, message, remedy = told(error)
    assert place == "shop/trucks/orders/truck.yml:3:11"
    assert "keeps no dead letters" in message
    assert remedy == "remove on_error: dead_letter"


def test_no_truck(mistakes: Mistakes) -> None:
    (error,) = mistakes(truck=None)
    assert told(error)[0] == "shop/trucks"
    assert "the project has no truck" in error.message
    assert "trucker init" in error.remedy


def test_a_truck_folder_without_its_file(mistakes: Mistakes) -> None:
    (error,) = mistakes(files={"trucks/lost/truck.yaml": ""})
    assert told(error)[:2] == ("shop/trucks/lost", "the folder has no truck.yml")


def test_two_trucks_of_one_name(mistakes: Mistakes) -> None:
    truck = "input: {connection: main, table: a}\noutput: {connection: duck}\n"
    (error,) = mistakes(files={"orders/truck.yml": truck})
    assert told(error) == (
        "shop/orders/truck.yml",
        'another truck has the name "orders"',
        "the first is shop/trucks/orders/truck.yml; rename one of the folders",
    )


def test_a_truck_name_that_no_folder_of_state_could_have(mistakes: Mistakes) -> None:
    truck = "input: {connection: main, table: a}\noutput: {connection: duck}\n"
    (error,) = mistakes(files={"trucks/two words/truck.yml": truck})
    assert told(error)[:2] == ("shop/trucks/two words/truck.yml", 'the truck\'s name "two words" cannot be used')
    assert "rename the folder" in error.remedy


@pytest.mark.parametrize("name", ["input", "transform", "insert", "update", "delete", "Output"])
def test_sql_files_are_templates_that_can_be_read(mistakes: Mistakes, name: str) -> None:
    """Of the truck's folder; what lies in those of its tests is another's."""
    files = {f"trucks/orders/{name}.sql": "select *\nfrom {{ rwos }}", "trucks/orders/test/case/input.sql": "{{"}
    (error,) = mistakes(files=files)
    place, message, remedy = told(error)
    assert place == f"trucks/orders/{name}.sql:2:9"
    assert message == "the template uses rwos, which is not defined"
    assert remedy == 'did you mean "rows"?'


def test_all_mistakes_are_reported_together_in_order(write: Write) -> None:
    folder = write(
        "connections:\n  - {name: main, port: x, hots: y}\n  - {name: duck, adapter: duckdb}\nbatsh: 1\n",
        "input: {connection: nix}\noutput: {connection: duck}\n",
        files={"b/truck.yml": "input: {connection: main, table: a}\n", "b/input.sql": "{{ nix }}"},
    )
    with pytest.raises(ConfigErrors) as caught:
        load_project(folder)
    assert [str(error.place) for error in caught.value.errors] == [
        "shop/trucker.yml:2:24",
        "shop/trucker.yml:2:27",
        "shop/trucker.yml:3:5",
        "shop/trucker.yml:4:1",
        "shop/trucks/orders/truck.yml:1:8",
        "shop/trucks/orders/truck.yml:1:21",
        "b/input.sql:1:4",
        "shop/b/truck.yml:1:1",
    ]
    assert caught.value.message == "the project has 8 errors"
    assert all(error.message in str(caught.value) for error in caught.value.errors)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert [str(error) for error in copy.errors] == [str(error) for error in caught.value.errors]


def test_a_broken_project_file_hides_no_truck(mistakes: Mistakes) -> None:
    errors = mistakes("a: b: c\n", "inptu: {connection: nix}\n")
    assert [str(error.place) for error in errors] == [
        "shop/trucker.yml:1:5",
        "shop/trucks/orders/truck.yml:1:1",
        "shop/trucks/orders/truck.yml:1:1",
    ]
