"""Templates: values from the environment and from files, and positions that stay those of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trucker.adapters.postgres import PostgresConnection
from trucker.config.document import read_document
from trucker.config.models import ProjectConfig
from trucker.errors import ConfigError, Place

Load = Callable[..., ProjectConfig]


@pytest.fixture(name="read")
def _read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    monkeypatch.chdir(tmp_path)

    def read(text: str) -> object:
        Path("f.yml").write_text(text, encoding="utf-8")
        return read_document(Path("f.yml"), Path()).plain()

    return read


Read = Callable[[str], object]


@pytest.mark.parametrize(
    "value",
    ["plain", "a: b", "# no comment", "'", '"', "*x", "- x\n- y", "null", "~", "", "007", "yes", "{{ x }}", "\t"],
)
@pytest.mark.parametrize("form", ["a: {}", "a: '{}'", 'a: "{}"', "a: [{}]", "a: |-\n  {}"])
def test_a_value_is_one_value_whatever_it_holds(
    read: Read, monkeypatch: pytest.MonkeyPatch, value: str, form: str
) -> None:
    monkeypatch.setenv("VALUE", value)
    expression = "{{ env('VALUE') }}" if form != "a: '{}'" else '{{ env("VALUE") }}'
    assert read(form.replace("{}", expression)) == {"a": [value] if "[" in form else value}


def test_values_join_texts_around_them(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "h")
    text = 'url: postgresql://u@{{ env("HOST") }}:{{ env("PORT", 5432) }}/d\n{{ env("HOST") }}: 1\n'
    assert read(text) == {"url": "postgresql://u@h:5432/d", "h": "1"}


def test_values_are_texts_in_expressions(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE", "test")
    text = 'a: {% if env("STAGE") == "test" %}small{% else %}large{% endif %}\nb: {{ env("STAGE") | upper }}\n'
    assert read(text) == {"a": "small", "b": "TEST"}


def test_set(read: Read) -> None:
    assert read('{% set host = env("NOT_THERE", "h") -%}\na: {{ host }}1{{ host ~ 2 }}\n') == {"a": "h1h2"}


def test_recursive_loops(read: Read) -> None:
    assert read("a: {% for n in [1, [2]] recursive %}{{ n if n is number else loop(n) }}{% endfor %}\n") == {"a": "12"}


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("{% macro host(n) %}h{{ n }}{% endmacro -%}", 4),
        ("{% filter upper %}a: 1{% endfilter %}", 4),
        ("{%- set x %}1{% endset %}", 5),
        ("{% set x | upper %}1{% endset %}", 4),
        ("{% call x() %}1{% endcall %}", 4),
    ],
)
def test_what_captures_text_is_refused(read: Read, text: str, column: int) -> None:
    with pytest.raises(ConfigError, match="not supported") as caught:
        read("a: 1\n" + text)
    assert caught.value.place == Place("f.yml", 2, column)


def test_a_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("  two\nlines \n", encoding="utf-8")
    assert read('a: {{ file("secret") }}\n') == {"a": "two\nlines"}
    assert read(f'a: {{{{ file("{tmp_path}/secret") }}}}\n') == {"a": "two\nlines"}


def test_truck_files_are_templates_too(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLE", "public.items")
    config = load(truck='input: {connection: main, table: {{ env("TABLE") }}}\noutput: {connection: duck}\n')
    assert config.trucks[0].input.tables == ("public.items",)


def test_numbers_from_the_environment(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "6000")
    config = load('connections: [{name: main, port: {{ env("PORT") }}}, {name: duck}]\n')
    main = config.connection("main")
    assert isinstance(main, PostgresConnection)
    assert main.port == 6000


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('a: 1\nb: {{ env("NOT_THERE") }}\n', (2, 12), "the environment variable NOT_THERE is not set"),
        ('a: {{ file("absent") }}\n', (1, 13), 'the file "absent" cannot be read: the file'),
        ("a: 1\n\nb: {{ nothing }}\n", (3, 7), "the template uses nothing, which is not defined"),
        ("a: {{ env('HOME').nix }}\n", (1, 4), "the template uses a name, which is not defined"),
        ("a: 1\nb: {{ env( }}\n", (2, 4), "the template cannot be read"),
        ("a: 1\n{% if true %}\nb: 1\n", (2, 1), "the template cannot be read"),
        ("a: {{ env('HOME') + 1 }}\n", (1, 4), "the template failed with TypeError"),
        ("a: {{ 1 / 0 }}\n", (1, 4), "the template failed with ZeroDivisionError"),
        ("{% for i in [1, 2] %}\n# {{ i }}\n{% endfor %}\na: {{ nix }}\n", (4, 7), "the template uses nix"),
        ("a: {% include 'other' %}\n", (1, 4), "the template failed with TypeError"),
    ],
)
def test_mistakes(read: Read, text: str, place: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.place == Place("f.yml", *place)
    assert message in caught.value.message
    assert caught.value.remedy


def test_the_remedy_names_the_variable(read: Read) -> None:
    with pytest.raises(ConfigError) as caught:
        read('b: {{ env("NOT_THERE") }}\n')
    assert caught.value.remedy == 'set NOT_THERE, or give a default: env("NOT_THERE", "…")'


def test_a_template_of_names_is_left_as_it_is_written(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIX", "shop")
    text = 'topic: "{{ env("PREFIX") }}.{{ schema }}.{{ table | upper }}"\n# {{ truck }}\n'
    assert read(text) == {"topic": "shop.{{ schema }}.{{ table | upper }}"}


@pytest.mark.parametrize(
    "text", ["a: 1\npath: out/{{ table }}\n", "a: 1\npath: [x, '{{ table }}']\n", "a: 1\n{{ table }}: 1\n"]
)
def test_a_template_of_names_is_refused_where_none_belongs(read: Read, text: str) -> None:
    with pytest.raises(ConfigError, match=r"\{\{ table \}\}, which is known in the keys") as caught:
        read(text)
    assert caught.value.code == "TRK103"
    assert caught.value.place is not None
    assert caught.value.place.line == 2


def test_a_name_that_the_file_gives_a_value_is_its_own(read: Read) -> None:
    assert read('{% set schema = "s" %}a: {{ schema }}\n') == {"a": "s"}
    text = "list:\n{% for table in ['x', 'y'] %}\n  - {{ schema | default('d') ~ table }}\n{% endfor %}\n"
    assert read(text) == {"list": ["dx", "dy"]}


def test_a_template_in_a_comment_runs_and_the_error_mentions_it(read: Read) -> None:
    with pytest.raises(ConfigError) as caught:
        read('a: 1\n  # b: {{ env("NOT_THERE") }}\n')
    assert caught.value.place == Place("f.yml", 2, 16)
    assert "{# … #}" in caught.value.remedy
    assert read('a: 1\n{# b: {{ env("NOT_THERE") }} #}\n') == {"a": "1"}


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("{% if false %}\nx: 1\ny: 2\n{% endif %}\na: 1\nBAD: 1\n", 6, 1),
        ("{% for n in [1, 2, 3] %}\n# {{ n }}\n{% endfor %}\na: 1\nBAD: 1\n", 5, 1),
        ("{%- if true -%}\n   a: 1\n{%- endif %}\nBAD: 1\n", 4, 1),
        ("{# a comment\nof two lines #}\nBAD: 1\n", 3, 1),
        ("{% raw %}a: '{{'\n{% endraw %}\n  \nBAD: 1\n", 4, 1),
        ("{ a: {{ env('HOME') }}, b: {{ env('HOME') }}, BAD: 1 }\n", 1, 47),
        ("a: |\n  {{ env('HOME') }}\n  two\nBAD: 1\n", 4, 1),
        ("{% for n in ['a', 'b'] %}{{ n }}: 1\n{% endfor %}BAD: 1\n", 2, 13),
        ("a: 1\r\nBAD: 1\r\n", 2, 1),
        ("\ufeffBAD: 1\n", 1, 1),
        ("\ufeffa: 1\nBAD: 1", 2, 1),
    ],
)
def test_places_are_those_of_the_file_as_written(tmp_path: Path, text: str, line: int, column: int) -> None:
    path = tmp_path / "f.yml"
    path.write_bytes(text.encode())
    item = read_document(path, tmp_path).at(("BAD",))
    assert item.key_place == Place(str(path), line, column)


def test_loops_point_at_the_one_line_they_have(tmp_path: Path) -> None:
    path = tmp_path / "f.yml"
    path.write_text("list:\n{% for n in [1, 2] %}\n  - name: n{{ n }}\n{% endfor %}\n", encoding="utf-8")
    document = read_document(path, tmp_path)
    assert document.plain() == {"list": [{"name": "n1"}, {"name": "n2"}]}
    assert [document.at(("list", n, "name")).place for n in (0, 1)] == [Place(str(path), 3, 11)] * 2
