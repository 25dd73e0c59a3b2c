"""Keeps a full-text index of articles: a batcher that stores trucker's position in the same file, so exactly once."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from trucker import Batcher, RowRefused, TableId

from .text import plain

LONGEST = 1_000_000


class SearchIndex(Batcher):
    """Articles in a table of SQLite's FTS5, by their id."""

    def __init__(self, index: str, language: str = "english") -> None:
        self.path = index
        self.tokenizer = {"english": "porter unicode61"}.get(language, "unicode61")

    def open(self) -> None:
        self.database = sqlite3.connect(self.path, isolation_level=None)
        self.database.execute(
            f"create virtual table if not exists articles using fts5 (title, body, tokenize = '{self.tokenizer}')"
        )
        self.database.execute("create table if not exists position (id integer primary key, text text)")

    def close(self) -> None:
        self.database.close()

    def upsert(self, table: TableId, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if len(row["body"] or "") > LONGEST:
                raise RowRefused(f"an article has more than {LONGEST} characters")
        self.delete(table, rows)
        entries = [(row["id"], row["title"], plain(row["body"] or "")) for row in rows]
        self.database.executemany("insert into articles (rowid, title, body) values (?, ?, ?)", entries)

    def delete(self, table: TableId, keys: Sequence[Mapping[str, Any]]) -> None:
        self._begin()
        self.database.executemany("delete from articles where rowid = ?", [(key["id"],) for key in keys])

    def truncate(self, table: TableId) -> None:
        self._begin()
        self.database.execute("delete from articles")

    def load_position(self) -> str | None:
        row = self.database.execute("select text from position").fetchone()
        return row and row[0]

    def save_position(self, position: str) -> None:
        self._begin()
        self.database.execute("insert or replace into position values (1, ?)", (position,))
        self.database.execute("commit")

    def _begin(self) -> None:
        """Begin a transaction with the first write after a commit."""
        if not self.database.in_transaction:
            self.database.execute("begin")
