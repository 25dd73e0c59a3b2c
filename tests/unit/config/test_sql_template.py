"""A truck's SQL files as templates: what they use, what they become, and where every character came from."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trucker.config.sql.sql_files import SqlFile
from trucker.config.sql.sql_lexer import split_statements, tokens
from trucker.config.sql.sql_template import ANY_COLUMN, RenderedSql, SqlTemplate, TemplateRelation
from trucker.errors import ConfigError, Place

ROWS = TemplateRelation("(select 1) as r", ("id", 'Odd"Name', "xid", "operation", "old__id", 'old__Odd"Name'))
SPARK = TemplateRelation("`rows` as r", ("id", "b`t", "old__id"), "`")


def template(text: str, name: str = "input.sql") -> SqlTemplate:
    return SqlTemplate(SqlFile(name, f"trucks/t/{name}", text))


def rendered(text: str, operation: str = "", name: str = "input.sql") -> RenderedSql:
    return template(text, name).render(ROWS, operation=operation, input_table="public.item")


def refusal(text: str, name: str = "input.sql") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        rendered(text, name=name)
    return caught.value


def test_the_names_of_a_template() -> None:
    text = "select {{ new.id }}, {{ old['id'] }} from {{ rows }} where '{{ input_table }}' = '{{ operation }}'"
    sql = rendered(text, "update").text
    assert sql == """select r."id", r."old__id" from (select 1) as r where 'public.item' = 'update'"""


def test_columns_are_quoted_whatever_they_are_called() -> None:
    assert rendered("{{ new['Odd\"Name'] }} {{ old['Odd\"Name'] }}").text == 'r."Odd""Name" r."old__Odd""Name"'
    spark = template("{{ new['b`t'] }} {{ old.id }}", "transform.sql").render(SPARK)
    assert spark.text == "r.`b``t` r.`old__id`"


def test_all_columns_in_a_loop() -> None:
    sql = rendered("select {{ old | join(', ') }}, {% for c in new %}{{ c }} {% endfor %}").text
    assert sql == 'select r."old__id", r."old__Odd""Name", r."id" r."Odd""Name" r."xid" '


def test_lookups_and_transformed() -> None:
    made = template("select * from {{ transformed }} join {{ lookups.rate }} as x using (id)", "insert.sql")
    assert made.lookups == {"rate"}
    assert made.uses("transformed")
    sql = made.render(SPARK, transformed=TemplateRelation("`made` as t", ("id",)), lookups={"rate": "`l_rate`"})
    assert sql.text == "select * from `made` as t join `l_rate` as x using (id)"


def test_env_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUCKER_TEST_SCHEMA", "shop")
    (tmp_path / "limit").write_text("10\n", encoding="utf-8")
    text = "select * from {{ env('TRUCKER_TEST_SCHEMA') }}.item limit {{ file('limit') }}"
    sql = SqlTemplate(SqlFile("input.sql", "input.sql", text, tmp_path)).render(ROWS)
    assert sql.text == "select * from shop.item limit 10"


@pytest.mark.parametrize(
    ("text", "uses", "mentions"),
    [
        ("select * from {{ rows }}", False, False),
        ("{% if operation == 'delete' %}x{% endif %}", True, True),
        ("select operation from {{ rows }}", False, True),
        ('select r."operation" from {{ rows }}', False, True),
        ("select 'operation' from {{ rows }} -- operation", False, False),
        ("{% for operation in ['a'] %}{{ operation }}{% endfor %}", False, False),
        ("{# operation #} {{ 'operation' }}", False, False),
    ],
)
def test_whether_it_is_about_the_operation(text: str, uses: bool, mentions: bool) -> None:
    made = template(text)
    assert (made.uses_operation, made.mentions_operation) == (uses, mentions)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("select {{ new.id }} from {{ rows }}", set()),
        ("select {{ old.id }} - r.old__amount", {"id", "amount"}),
        ('select r.OLD__Amount, r."old__Amount", r."old__a""b"', {"amount", "Amount", 'a"b'}),
        ("select 'old__a', $$ old__b $$ /* old__c */ -- old__d", set()),
        ("{# {{ old.a }} #}{% raw %}{{ old.b }}{% endraw %}", set()),
        ("{% if false %}{{ old.a }}{% endif %}", {"a"}),
        ("{% for c in ['a', 'b'] %}{{ old[c] }}{% endfor %}", {ANY_COLUMN}),
        ("{{ old | join(',') }} {{ old.a }}", {ANY_COLUMN, "a"}),
        ("{% for old in ['a'] %}{{ old }}{% endfor %}", set()),
    ],
)
def test_the_old_values_it_mentions(text: str, columns: set[str]) -> None:
    assert template(text).old_columns == columns


def test_spark_tells_no_capitals_apart() -> None:
    assert template('select `old__Amount`, "old__text"', "transform.sql").old_columns == {"amount"}


def test_it_pickles() -> None:
    made = pickle.loads(pickle.dumps(template("select {{ old.id }}\nfrom {{ rows }}")))
    sql = pickle.loads(pickle.dumps(made.render(ROWS)))
    assert made.old_columns == {"id"}
    assert sql.place(sql.text.index("from")) == Place("trucks/t/input.sql", 2, 1)


LOOPS = """\
-- a comment
select {{ new.id }} as one,
{%- for c in ["id", "xid"] %}
  {{- new[c] }} as two{{ loop.index }}, x{{ c }} as three,
{%- endfor %}
  {% if operation == "delete" -%}
      gone
  {%- else -%}
      here
  {%- endif %} as four
from {{ rows }} where five
"""


@pytest.mark.parametrize(
    ("word", "line", "column"),
    [
        ("-- a", 1, 1),
        ("select r", 2, 1),
        ('r."id" as one', 2, 8),
        ("as one", 2, 21),
        ("as two1", 4, 17),
        ("as two2", 4, 17),
        ("1, xid", 4, 23),
        ("xxid", 4, 41),
        ("as three", 4, 50),
        ("gone", 7, 7),
        ("as four", 10, 16),
        ("(select 1)", 11, 6),
        ("as r where", 11, 6),
        ("where", 11, 17),
        ("five", 11, 23),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_positions_are_those_of_the_file(word: str, line: int, column: int, ends: str) -> None:
    sql = rendered(LOOPS.replace("\n", ends), "delete")
    assert sql.place(sql.text.index(word)) == Place("trucks/t/input.sql", line, column)


PIECES = st.sampled_from(
    ["select ", "w0", " ", "\n", "\t", "{{ new.id }}", "{{- rows }}", "{{ rows -}}", "{% if true %}", "{%- if true -%}",
     "{% endif %}", "{%- endif %}", "{% for i in [1,2] %}", "{% endfor -%}", "{# c #}", "{#- c -#}", "ü", ";"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=25))
def test_every_word_of_the_text_is_where_its_place_says(pieces: list[str]) -> None:
    """Numbered words, through any nesting and whitespace control: the place has the very word."""
    opened: list[str] = []
    kept: list[str] = []
    for number, piece in enumerate(pieces):
        if "end" in piece:
            if not opened or opened[-1] not in piece:
                continue
            opened.pop()
        elif piece.startswith("{%"):
            opened.append("endif" if "if" in piece else "endfor")
        kept.append(f"w{number}_" if piece == "w0" else piece)
    text = "".join([*kept, *(f"{{% {end} %}}" for end in reversed(opened))])
    sql = rendered(text)
    lines = text.split("\n")
    for match in re.finditer(r"w\d+_", sql.text):
        place = sql.place(match.start())
        assert lines[place.line - 1][place.column - 1 :].startswith(match[0])


@pytest.mark.parametrize(
    ("text", "name", "place", "words"),
    [
        ("select\n  {{ new.idd }}", "input.sql", (2, 6), 'did you mean "id"?'),
        ("{{ old.idd }}", "input.sql", (1, 4), 'did you mean "id"?'),
        ("{{ new['zzz'] }}", "input.sql", (1, 4), "there are id"),
        ("{{ lookups.rate }}", "transform.sql", (1, 4), "there are none"),
        ("a\n{{ rwos }}", "input.sql", (2, 4), 'did you mean "rows"?'),
        ("{{ transformed }}", "transform.sql", (1, 4), "templates here know rows"),
        ("{{ lookups.x }}", "output.sql", (1, 4), "templates here know rows"),
        ("{{ new }}", "input.sql", (1, 4), "write new.<name>"),
        ("{{ new. }}", "input.sql", (1, 1), "close every"),
        ("a\n{% if %}", "input.sql", (2, 1), "close every"),
        ("a\n{% if true %}", "input.sql", (2, 1), "close every"),
        ("{{ 1 / 0 }}", "input.sql", (1, 1), "correct the expression"),
        ("{% macro m() %}{% endmacro %}", "input.sql", (1, 4), "write values out"),
        ("\n  -- {{ env('TRUCKER_NO_SUCH') }}", "input.sql", (2, 14), "the line is a SQL comment"),
    ],
)
def test_what_is_wrong_has_its_place(text: str, name: str, place: tuple[int, int], words: str) -> None:
    error = refusal(text, name)
    assert error.place == Place(f"trucks/t/{name}", *place)
    assert words in error.remedy


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a\\b", "a`b", "a$b", "a--b", "a/*b", "a;b", "a\nb"])
def test_no_name_of_a_table_becomes_sql(name: str) -> None:
    with pytest.raises(ConfigError, match="could be read as SQL"):
        template("select '{{ input_table }}'").render(ROWS, input_table=f"public.{name}")
    assert template("select 1").render(ROWS, input_table=f"public.{name}").text == "select 1"


def test_ordinary_names_of_tables() -> None:
    for name in ("public.item", "Shop.Größe 2", "a-b.c_d"):
        assert template("{{ input_table }}").render(ROWS, input_table=name).text == name


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" ; ;; -- only\n /* ; */", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';', E'\\';', '''; ', \";\", `;` ; x", ["select ';', E'\\';', '''; ', \";\", `;`", "x"]),
        ("do $a$ ; $$ ; $b$ $a$; x", ["do $a$ ; $$ ; $b$ $a$", "x"]),
        ("select $1;x$$;$$", ["select $1", "x$$", "$$"]),
        ("a -- ;\n b /* ; /* ; */ ; */ c; d", ["a -- ;\n b /* ; /* ; */ ; */ c", "d"]),
        ("select '; x", ["select '; x"]),
        ("select 'a\\'; x", ["select 'a\\'", "x"]),
        ("a ` b; c", ["a ` b", "c"]),
        ("a /* ; ", ["a"]),
    ],
)
def test_statements_are_cut_outside_quotes_and_comments(text: str, statements: list[str]) -> None:
    found = split_statements(text)
    assert [statement.text for statement in found] == statements
    assert all(text[one.offset :].startswith(one.text) for one in found)


def test_spark_has_backslashes_and_strings_in_double_quotes() -> None:
    first = r"""select 'a\';', ";", r'\', `;`"""
    found = [statement.text for statement in split_statements(f"{first} ; x", spark=True)]
    assert found == [first, "x"]


@given(st.text(alphabet="a'\"`$;-/*\\\n e1", max_size=40), st.booleans())
def test_tokens_are_the_whole_text(text: str, spark: bool) -> None:
    assert "".join(token.text for token in tokens(text, spark=spark)) == text


def test_a_place_of_a_statement() -> None:
    sql = rendered("-- first\nselect 1;\n\n  select {{ new.id }} + nothing")
    second = sql.statements()[1]
    assert sql.place(second.offset) == Place("trucks/t/input.sql", 4, 3)
    assert sql.place(second.offset + second.text.index("nothing")) == Place("trucks/t/input.sql", 4, 25)


def test_a_text_in_the_place_of_another_moves_no_place() -> None:
    text = "select a from {{ rows }} where b\n  and c in (select x from {{ rows }}) and d"
    plain = template(text).render(TemplateRelation("<rows>", ()))
    for new in ("", "r", "(select a long one) as r"):
        sql = plain.replaced("<rows>", new)
        assert sql.text == plain.text.replace("<rows>", new)
        for word in ("a from", "where", "and c", ") and", "d"):
            assert sql.place(sql.text.rindex(word)) == plain.place(plain.text.rindex(word))
