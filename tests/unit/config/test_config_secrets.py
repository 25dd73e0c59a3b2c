"""I10: a password arrives exactly as it is, by every way there is, and shows nowhere."""

from __future__ import annotations

import pickle
import tempfile
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trucker.adapters.postgres import PostgresConnection
from trucker.config.models import ProjectConfig
from trucker.config.project_folder import load_project
from trucker.errors import ConfigError

TRUCK = "input: {connection: main, table: a}\noutput: {connection: main, table: b}\n"

# No PostgreSQL password holds NUL; surrogates are no text. Whatever YAML itself cannot hold must come as a template.
secret = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
# What identifies a value in a message: long enough not to be there by chance.
telling = secret.map(lambda text: f"zq{text}kx")

quick = settings(deadline=None, max_examples=50)


def load(project: str, files: dict[str, str] | None = None) -> ProjectConfig:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trucks/t").mkdir(parents=True)
        texts = {"trucker.yml": project, "trucks/t/truck.yml": TRUCK, **(files or {})}
        for path, text in texts.items():
            (folder / path).write_bytes(text.encode())
        return load_project(folder)


def password(config: ProjectConfig) -> str:
    connection = config.connection("main")
    assert isinstance(connection, PostgresConnection)
    return connection.password.get_secret_value()


def shown(config: ProjectConfig) -> str:
    return f"{config!r} {config} {config.model_dump()} {config.model_dump_json()} {config.connections[0]!r}"


@quick
@given(telling)
@example("zq*&!@%`#: 'kx")
@example("zq{{ env('X') }}{% if %}kx")
@example("zq\ue000kx\ue001")
def test_by_environment(value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET", value)
        for form in ("{}", "'{}'", '"{}"'):
            expression = "{{ env('SECRET') }}" if form != "'{}'" else '{{ env("SECRET") }}'
            config = load(f"connections:\n  - name: main\n    pass: {form.replace('{}', expression)}\n")
            assert password(config) == value
            assert value not in shown(config)


@quick
@given(telling)
def test_by_file(value: str) -> None:
    for key in ("pass_path: secret", 'pass: {{ file("secret") }}'):
        config = load(f"connections:\n  - name: main\n    {key}\n", {"secret": f"{value}\n"})
        assert password(config) == value
        assert value not in shown(config)


@quick
@given(telling)
def test_by_url(value: str) -> None:
    url = f"postgresql://me:{quote(value, safe='')}@host/db"
    config = load("connections:\n  - {name: main, url_path: url}\n", {"url": url})
    assert password(config) == value
    assert value not in shown(config)
    assert quote(value, safe="") not in shown(config)


@quick
@given(telling)
def test_written_in_yaml(value: str) -> None:
    written = yaml.safe_dump({"connections": [{"name": "main", "pass": value}]}, allow_unicode=False)
    config = load("{% raw %}" + written.replace("{% endraw", "{% endraw %}{{ '{% endraw' }}{% raw %}") + "{% endraw %}")
    assert password(config) == value
    assert value not in shown(config)


MISTAKES = (
    "connections:\n  - {name: main, port: {{ env('SECRET') }}}\n",
    "connections:\n  - {name: main, pass: [{{ env('SECRET') }}]}\n",
    "connections:\n  - {name: main, ssl: {{ env('SECRET') }}}\n",
    "connections:\n  - {name: main, adapter: {{ env('SECRET') }}}\n",
    "connections:\n  - {name: main, url: {{ env('SECRET') }}}\n",
    "connections:\n  - {name: main, url: postgres://me:{{ env('SECRET') }}@h:x/d}\n",
    "connections:\n  - {name: main, url: postgres://h/d?{{ env('SECRET') }}=1}\n",
    "connections:\n  - {name: main, url: postgres://h/d?sslmode={{ env('SECRET') }}}\n",
    "connections:\n  - {name: main, pass: {{ env('SECRET') }}, hots: x}\n",
    "connections:\n  - {name: main, replica_pass: {{ env('SECRET') }}}\n",
    "connections:\n  - {name: main, pass: {{ env('SECRET') }}, pass_path: x}\n",
    "connections: {{ env('SECRET') }}\n",
    "connections:\n  - {{ env('SECRET') }}\n",
    "connections:\n  - name: main\nheartbeat: {{ env('SECRET') }}\n",
    "connections:\n  - name: main\nbatch: {max_bytes: {{ env('SECRET') }}}\n",
    "connections:\n  - name: main\nspark: {settings: {{ env('SECRET') }}}\n",
    "connections:\n  - {name: main, pass: {{ env('SECRET') | int }}, port: {{ env('SECRET') + 1 }}}\n",
    "connections:\n  - {name: main, parameters: {password: {{ env('SECRET') }}}}\n",
)


@quick
@given(telling, st.sampled_from(MISTAKES))
def test_in_no_error(value: str, project: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET", value)
        with pytest.raises(ConfigError) as caught:
            load(project)
    error = caught.value
    text = "".join([*traceback.format_exception(error), repr(error), str(error), repr(vars(error))])
    assert value not in text


@quick
@given(
    telling, st.sampled_from(["{}", "*{}", "&{}", "!{}", "@{}", "%{}", "'{}", '"{}', "[{}", "{{}", "`{}", "x: {}: {}"])
)
def test_in_no_error_of_yaml(value: str, form: str) -> None:
    """The password is in the file itself, unquoted, and breaks it as it will."""
    written = (
        "{% raw %}connections:\n  - {% endraw %}name: main\n    pass: " + form.replace("{}", value) + "\n    portt: 1\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(written)
    text = "".join([*traceback.format_exception(caught.value), repr(caught.value), repr(vars(caught.value))])
    assert value not in text


def test_a_password_in_a_file_is_read_again(tmp_path: Path) -> None:
    """For the connection, its standby and in a URL; where the file is gone the last one stays."""
    (tmp_path / "trucks/t").mkdir(parents=True)
    (tmp_path / "trucks/t/truck.yml").write_text(TRUCK)
    (tmp_path / "trucker.yml").write_text(
        "connections:\n"
        "  - {name: main, pass_path: first, replica_host: standby, replica_pass_path: second}\n"
        "  - {name: other, pass_path: first, replica_host: standby}\n"
        "  - {name: url, url_path: whole}\n"
    )
    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    first.write_text("a\n")
    second.write_text("b\n")
    whole.write_text("postgresql://u:c@host/d\n")
    config = load_project(tmp_path)
    main, other, url = (config.connection(name) for name in ("main", "other", "url"))
    assert isinstance(main, PostgresConnection)
    assert isinstance(other, PostgresConnection)
    assert isinstance(url, PostgresConnection)
    assert main.refreshed() is main
    first.write_text("a2\n")
    second.write_text("b2\n")
    whole.write_text("postgresql://u:c2@host/d\n")

    def now(connection: PostgresConnection | None) -> str:
        assert connection is not None
        travelled = pickle.loads(pickle.dumps(connection))
        return str(travelled.refreshed().password.get_secret_value())

    assert [now(main), now(main.replica), now(other.replica), now(url)] == ["a2", "b2", "a2", "c2"]
    first.unlink()
    assert now(main) == "a"
    assert main.refreshed() is main
