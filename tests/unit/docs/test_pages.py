"""The documentation keeps up with the code: links, examples, and a place for every command, sink, setting and error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from fixtures.documents import ROOT, Block, anchors, blocks, links, pages
from trucker import __version__
from trucker.cli.exits import MEANINGS
from trucker.cli.main import COMMANDS
from trucker.config.project_folder import load_project
from trucker.config.registry import installed
from trucker.config.starter import TRUCKER_YML
from trucker.observe.status import CopyProgress, ProjectStatus, TruckPhase, TruckStatus

README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference"
_CODE = re.compile(r"TRK\d{3}")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: there is no such heading"


def test_every_page_of_docs_is_listed() -> None:
    index = ROOT / "docs" / "README.md"
    notes = ROOT / "docs" / "decisions" / "README.md"
    listed = {(page.parent / link.partition("#")[0]).resolve() for page in (index, notes) for link in links(page)}
    missing = [_name(page) for page in (ROOT / "docs").rglob("*.md") if page not in {index, notes, *listed}]
    assert missing == []


def test_every_test_that_a_page_names_exists() -> None:
    """A promise names the test that proves it: `tests/…/test_x.py::test_y`."""
    for page in pages():
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            found = ROOT / path
            assert found.exists(), f"{_name(page)}: there is no {path}"
            assert f"def {name}(" in found.read_text(encoding="utf-8"), f"{_name(page)}: {path} has no {name}"


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(page.name[:4]) for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


# -- examples ---------------------------------------------------------------------------------------------------------

_MARKED = [block for page in pages() for block in blocks(page) if block.file and block.file.endswith(".yml")]
_TRUCK = "input:\n  connection: {source}\n  tables: public.*\noutput:\n  connection: {target}\n"


def _files(block: Block) -> Mapping[str, str]:
    """A project around the block: what comes before it on its page, and a truck where the page has none yet. A page
    that shows no trucker.yml speaks of the one that `trucker init` writes."""
    own = [other for other in _MARKED if other.page == block.page]
    found = {str(other.file): other.text for other in own[: own.index(block) + 1]}
    project = next((other.text for other in own if other.file == "trucker.yml"), TRUCKER_YML)
    found.setdefault("trucker.yml", project)
    names = re.findall(r"- name: (\S+)", found["trucker.yml"])
    if len(found) == 1:
        found["trucks/any/truck.yml"] = _TRUCK.format(source=names[0], target=names[-1])
    return found


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        if re.search(r"adapter: python\b", files["trucker.yml"]) and name.endswith("/truck.yml"):
            handler = "class Any:\n    def on_insert(self, change): ...\n"
            (folder / name).with_name("handler.py").write_text(handler, encoding="utf-8")


@pytest.mark.parametrize("block", _MARKED, ids=str)
def test_every_marked_yaml_block_loads(block: Block, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    files = {name: text.replace("/run/secrets", str(secrets)) for name, text in _files(block).items()}
    for path in set(re.findall(rf"{re.escape(str(secrets))}/[\w-]+", "".join(files.values()))):
        Path(path).write_text("from a file\n", encoding="utf-8")
    _write(tmp_path / "project", files)
    assert load_project(tmp_path / "project").trucks


def test_every_yaml_block_of_the_guides_is_marked() -> None:
    unmarked = [
        str(block)
        for page in (README, *(ROOT / "docs" / "tutorial").glob("*.md"), *(ROOT / "docs" / "howto").glob("*.md"))
        for block in blocks(page)
        if block.language == "yaml" and not block.file and page.name != "write_a_sink.md"
    ]
    assert unmarked == []


_CONNECTIONS = [
    block
    for page in sorted((REFERENCE / "sinks").glob("*.md"))
    for block in blocks(page)
    if block.language == "yaml" and block.text.startswith("connections:")
]


@pytest.mark.parametrize("block", _CONNECTIONS, ids=str)
def test_every_connection_shown_in_the_reference_loads(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r'env\("(\w+)"\)', block.text):
        monkeypatch.setenv(name, "x")
    target = re.findall(r"- name: (\S+)", block.text)[-1]
    files = {
        "trucker.yml": f"{block.text}\n  - name: a_source_of_changes\n",
        "trucks/any/truck.yml": _TRUCK.format(source="a_source_of_changes", target=target),
    }
    _write(tmp_path, files)
    assert load_project(tmp_path).trucks


@pytest.mark.parametrize("block", [b for page in pages() for b in blocks(page) if b.language == "python"], ids=str)
def test_every_python_block_is_python(block: Block) -> None:
    ast.parse(block.text, str(block.page))


# -- nothing is left out ----------------------------------------------------------------------------------------------


def test_every_sink_is_in_the_readme_and_has_a_page() -> None:
    text = README.read_text(encoding="utf-8")
    for adapter in installed().built_in():
        assert f"`{adapter.name}`" in text
        assert (REFERENCE / "sinks" / f"{adapter.name}.md").exists(), f"{adapter.name}.md is missing"


def test_every_command_is_shown_somewhere_to_a_user() -> None:
    guides = "".join(page.read_text(encoding="utf-8") for page in pages() if "reference" not in page.parts)
    for command in COMMANDS:
        shown = rf"trucker {command}\b" if command != "demo" else r"make demo"
        assert re.search(shown, guides), f"no page shows `trucker {command}`"


def test_no_page_shows_a_command_that_is_not_there() -> None:
    for page in pages():
        for block in blocks(page):
            if block.language not in ("sh", "console"):
                continue
            for word in re.findall(r"^(?:\$ )?trucker (\w+)", block.text, re.MULTILINE):
                assert word in COMMANDS, f"{block}: there is no `trucker {word}`"


def test_every_field_and_phase_of_the_status_is_described() -> None:
    page = (REFERENCE / "status.md").read_text(encoding="utf-8")
    for model in (ProjectStatus, TruckStatus, CopyProgress):
        for field in fields(model):
            assert f"`{field.name}`" in page, f"{model.__name__}.{field.name}"
    for phase in TruckPhase:
        assert f"| `{phase.value}` |" in page


def test_every_exit_code_of_a_run_is_in_the_guide_to_production() -> None:
    page = (ROOT / "docs" / "howto" / "production.md").read_text(encoding="utf-8")
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} |" in page or code.value == 130 or meaning.startswith("`status`:")


def test_the_changelog_has_this_version_first() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__


# -- errors -----------------------------------------------------------------------------------------------------------


def _codes_in(tree: ast.AST) -> Iterator[str]:
    """The codes that are whole strings: those given to errors and findings, not those that prose mentions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
            yield node.value


def _codes_of_the_source() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for code in _codes_in(ast.parse(file.read_text(encoding="utf-8"))):
            found.setdefault(code, str(file.relative_to(ROOT)))
    return found


def _codes_of_the_page() -> list[str]:
    return re.findall(r"^\| `(TRK\d{3})` \|", (REFERENCE / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_error_code_is_documented() -> None:
    missing = {code: file for code, file in _codes_of_the_source().items() if code not in _codes_of_the_page()}
    assert missing == {}, "add a row to docs/reference/errors.md"


def test_no_error_code_is_documented_that_is_never_raised_or_twice() -> None:
    listed = _codes_of_the_page()
    assert sorted(set(listed) - _codes_of_the_source().keys()) == []
    assert len(listed) == len(set(listed))


def test_every_error_code_that_a_page_mentions_is_documented() -> None:
    known = set(_codes_of_the_page())
    for page in pages():
        unknown = set(_CODE.findall(page.read_text(encoding="utf-8"))) - known
        assert unknown == set(), _name(page)
