"""A YAML file as values that know where they stand.

Scalars stay text until a model gives them a type, so a password `007` is not a number; an empty value, `~` and `null`
are None. YAML's own messages are not shown: they may quote a value (I10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from trucker.config.name_template import KEYS
from trucker.config.template import CODE as TEMPLATE
from trucker.config.template import Rendered, Rendering, render
from trucker.errors import ConfigError, Place
from trucker.file_errors import reason_and_remedy

CODE: Final = "TRK102"
_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = {_CORE + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "map", "seq")}
_MERGE: Final = _CORE + "merge"

_PROBLEMS: Final = (
    ("found character '\\t'", "a tab is used where YAML requires spaces", "indent with spaces"),
    (
        "mapping values are not allowed",
        "a colon is used where YAML does not allow one",
        "put the text in quotes, or indent it",
    ),
    ("could not find expected ':'", "a key has no colon after it", "write key: value"),
    ("found undefined alias", "a value begins with *, which marks an alias in YAML", "put the value in quotes"),
    ("cannot start any token", "a value begins with a character that YAML reserves", "put the value in quotes"),
    ("found unexpected end of stream", "a quote is never closed", "close it"),
    (
        "found unknown escape",
        "a backslash begins an unknown escape sequence",
        "use single quotes, or write two backslashes",
    ),
    ("but found another document", "the file holds more than one YAML document", "remove the --- between them"),
)


@dataclass(frozen=True, slots=True)
class Item:
    """A value, its place and its key's place (the value's own place where it has no key).

    A list is a tuple of items, a mapping has items as its values. What else a file holds is text or None; a program may
    give other values (`project_build`). `blank`: nothing is written after the key, not even `null`.
    """

    value: object
    place: Place
    key_place: Place
    blank: bool = False

    @property
    def entries(self) -> Mapping[str, Item]:
        """The entries of a mapping; empty for any other value."""
        return self.value if isinstance(self.value, Mapping) else {}

    def plain(self) -> Any:
        """The value as dict, list, text and None."""
        if isinstance(self.value, Mapping):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, tuple):
            return [item.plain() for item in self.value]
        return self.value

    def at(self, path: tuple[str | int, ...]) -> Item:
        """The item a path leads to, or the last item on the way that exists."""
        item = self
        for step in path:
            if isinstance(item.value, Mapping) and step in item.value:
                item = item.value[str(step)]
            elif isinstance(item.value, tuple) and str(step).isdigit() and int(step) < len(item.value):
                item = item.value[int(step)]
            else:
                break
        return item


def read_document(path: Path, folder: Path) -> Item:
    """Read, render and parse a file; its top is a mapping. Raises `ConfigError`."""
    try:
        source = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(
            "the file is not UTF-8 text", place=Place(str(path)), remedy="save it as UTF-8", code=CODE
        ) from None
    except OSError as error:
        reason, remedy = reason_and_remedy(error, path)
        raise ConfigError(
            f"the file cannot be read: {reason}", place=Place(str(path)), remedy=remedy, code="TRK101"
        ) from None
    return _Document(render(source, str(path), folder), str(path)).read()


class _Document:
    """One file on its way from rendered text to items."""

    def __init__(self, rendered: Rendered, name: str) -> None:
        self.rendered = rendered
        self.name = name

    def read(self) -> Item:
        node = self._compose()
        if node is None:
            start = Place(self.name, 1, 1)
            return Item({}, start, start)
        item = self._item(node, ())
        if item.value is None:
            return replace(item, value={})
        if not isinstance(item.value, Mapping):
            raise self._error(item.place, "the file must contain keys and values", "write key: value")
        return item

    def _compose(self) -> yaml.Node | None:
        try:
            node: yaml.Node | None = yaml.compose(self.rendered.text, Loader=yaml.SafeLoader)
            return node
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = self._place(mark.index if mark else 0)
            problem = error.problem or ""
            message, remedy = next(
                ((message, remedy) for sign, message, remedy in _PROBLEMS if sign in problem),
                ("this is not valid YAML", "check the indentation and the quotes here"),
            )
        except yaml.reader.ReaderError as error:
            place = self._place(error.position)
            message, remedy = "YAML does not allow this character", "remove it, or write it as an escape"
        raise self._error(place, message, remedy)

    def _item(self, node: yaml.Node, above: tuple[yaml.Node, ...], key: Place | None = None, named: str = "") -> Item:
        place = self._place(node.start_mark.index)
        if any(node is other for other in above):
            raise self._error(place, "an alias refers to itself", "write the value out")
        if node.tag not in _TAGS:
            raise self._error(place, "YAML does not know this tag", "put the value in quotes if it begins with !")
        value: str | tuple[Item, ...] | Mapping[str, Item] | None
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, (*above, node))
        elif isinstance(node, yaml.SequenceNode):
            value = tuple(self._item(child, (*above, node)) for child in node.value)
        else:
            value = self._scalar(node)
            self._refuse_later(node, place, named)
        return Item(value, place, key or place, blank=value is None and node.value == "")

    def _scalar(self, node: yaml.Node) -> str | None:
        text: str = node.value
        if node.tag == _CORE + "null" and not self.rendered.has_value(text):
            return None
        return self.rendered.fill(text)

    def _refuse_later(self, node: yaml.Node, place: Place, key: str) -> None:
        """Refuse `{{ table }}` where no template of names belongs."""
        expression = self.rendered.runs_later(node.value)
        if expression and key not in KEYS:
            raise ConfigError(
                f"the template has {expression}, which is known in the keys {', '.join(sorted(KEYS))} alone",
                place=place,
                remedy=Rendering.names,
                code=TEMPLATE,
            )

    def _mapping(self, node: yaml.MappingNode, above: tuple[yaml.Node, ...]) -> Mapping[str, Item]:
        # A key of the mapping itself overrides one of `<<`, wherever that is written.
        items: dict[str, Item] = {}
        merged: dict[str, Item] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node.start_mark.index)
            if key_node.tag == _MERGE:
                for item in self._merged(value_node, above):
                    merged = {**item.entries, **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(place, "a key must be plain text", "put {{ … }} templates in quotes or after a key")
            key = self._scalar(key_node) or ""
            self._refuse_later(key_node, place, "")
            if key in items:
                first = items[key].key_place
                raise self._error(place, f'the key "{key}" is given twice', f"the first is in line {first.line}")
            items[key] = self._item(value_node, above, place, key)
        return {**merged, **items}

    def _merged(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> Iterator[Item]:
        """The mappings that `<<` brings in."""
        for child in node.value if isinstance(node, yaml.SequenceNode) else (node,):
            item = self._item(child, above)
            if not isinstance(item.value, Mapping):
                raise self._error(item.place, "<< can only merge a mapping", "use an alias of a mapping")
            yield item

    def _place(self, offset: int) -> Place:
        return Place(self.name, *self.rendered.position(offset))

    def _error(self, place: Place, message: str, remedy: str) -> ConfigError:
        return ConfigError(message, place=place, remedy=remedy, code=CODE)
