"""PostgreSQL's arrays as arrays of JSON, made by column."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trucker.sinks.envelope.text_conversion import converted

_LARGE: Final = pa.large_string()
_NOTHING: Final = pa.scalar("", _LARGE)


def json_arrays(text: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """PostgreSQL's arrays as JSON's, whose elements `convert` makes."""

    def one(value: str) -> str:
        return _nested(parse_array(value), convert)

    # Braces and line breaks inside of elements, and several dimensions, are rare.
    return converted(
        text, r'^\{([^{}"\x00-\x1f]|"([^"\\{}\x00-\x1f]|\\["\\])*")*\}$', lambda some: _flat(some, convert), one
    )


def _flat(text: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Arrays of one dimension: elements are quoted where they are not, and read as JSON."""
    inner = pc.utf8_slice_codeunits(text, 1, -1)
    marked = pc.replace_substring_regex(inner, r'("(?:[^"\\]|\\.)*")|([^",]+)', "\\1\x01\\2\x01")
    marked = pc.replace_substring(pc.replace_substring(marked, "\x01NULL\x01", "null"), "\x01\x01", "")
    texts = pc.replace_substring(marked, "\x01", '"')
    lines = pc.binary_join_element_wise(
        pa.scalar('{"a":[', _LARGE), pc.fill_null(texts, ""), pa.scalar("]}\n", _LARGE), _NOTHING
    )
    if not len(lines):
        return text
    lists = read_lists(lines)
    elements = convert(lists.flatten().cast(_LARGE))
    joined = pc.binary_join(
        pa.ListArray.from_arrays(lists.offsets, pc.fill_null(elements, "null").cast(pa.string())), ","
    ).cast(_LARGE)
    result = pc.binary_join_element_wise(pa.scalar("[", _LARGE), joined, pa.scalar("]", _LARGE), _NOTHING)
    return pc.if_else(pc.is_valid(text), result, None)


def read_lists(lines: pa.Array) -> pa.ListArray:
    """Lists of strings from lines of JSON."""
    from pyarrow import json as pajson

    data = np.frombuffer(lines.buffers()[2], np.uint8)
    offsets = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]
    block = pa.py_buffer(data[offsets[0] : offsets[-1]])
    schema = pa.schema([("a", pa.list_(pa.string()))])
    table = pajson.read_json(
        pa.BufferReader(block),
        pajson.ReadOptions(use_threads=False, block_size=max(block.size, 1) + 1),
        pajson.ParseOptions(explicit_schema=schema),
    )
    return table.column("a").combine_chunks()


_BOUNDS: Final = re.compile(r"^(\[-?\d+:-?\d+\])+=")
_TOKEN: Final = re.compile(r'\{|\}|,|"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_Tree = list["_Tree | str | None"]


def parse_array(text: str) -> _Tree:
    """An array of any number of dimensions, as nested lists."""
    stack: list[_Tree] = [[]]
    for match in _TOKEN.finditer(_BOUNDS.sub("", text)):
        token = match[0]
        if token == "{":
            stack.append([])
        elif token == "}":
            inner = stack.pop()
            stack[-1].append(inner)
        elif match[1] is not None:
            stack[-1].append(re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL))
        elif match[2] is not None:
            stack[-1].append(None if match[2] == "NULL" else match[2])
    (array,) = stack[0]
    assert isinstance(array, list)
    return array


def _nested(tree: _Tree, convert: Callable[[pa.Array], pa.Array]) -> str:
    leaves = [each for each in tree if not isinstance(each, list)]
    made = iter(convert(pa.array(leaves, _LARGE)).to_pylist() if leaves else ())
    parts = [_nested(each, convert) if isinstance(each, list) else next(made) or "null" for each in tree]
    return f"[{','.join(parts)}]"
