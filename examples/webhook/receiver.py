"""Receives webhooks of trucker and keeps the rows in a SQLite file: `receiver.py PORT FILE`.

It has what every receiver needs: it believes only what is signed and new, it may get an event twice, and an older event
after a newer one (`trucker redrive`), and answers with 200 only once the rows are stored. HOOKS_SECRET is the secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

TABLE = """
create table if not exists rows (
    name text, key text, lsn integer, ordinal integer, content text, primary key (name, key)
)
"""
# A row that is deleted stays, without content: an older event that comes late must not bring it back.
NEWER = """
insert into rows values (?, ?, ?, ?, ?) on conflict (name, key) do update
set lsn = excluded.lsn, ordinal = excluded.ordinal, content = excluded.content
where (excluded.lsn, excluded.ordinal) >= (rows.lsn, rows.ordinal)
"""


def signed(secret: str, headers: Any, body: bytes) -> bool:
    """Whether the request is of someone who has the secret, and not older than five minutes."""
    name, timestamp = headers["webhook-id"] or "", headers["webhook-timestamp"] or ""
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > 300:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    digest = hmac.new(key, f"{name}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(digest).decode()}"
    return any(hmac.compare_digest(expected, each) for each in (headers["webhook-signature"] or "").split())


def take(database: sqlite3.Connection, event: dict[str, Any]) -> None:
    """Apply one event, unless its row is newer already."""
    name = f"{event['schema']}.{event['table']}"
    high, low = event["commit_lsn"].split("/")
    place = (int(high, 16) << 32 | int(low, 16), event.get("ordinal") or 0)
    if event["operation"] == "truncate":
        database.execute(
            "update rows set lsn = ?, ordinal = ?, content = null where name = ? and (lsn, ordinal) <= (?, ?)",
            (*place, name, *place),
        )
        return
    key, old = event["key"], {column: (event["old"] or event["key"])[column] for column in event["key"]}
    if old != key:
        database.execute(NEWER, (name, json.dumps(old), *place, None))
    database.execute(NEWER, (name, json.dumps(key), *place, event["new"] and json.dumps(event["new"])))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file: ClassVar[str]
    secret: ClassVar[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if not signed(self.secret, self.headers, body):
            self.answer(401)
            return
        events = json.loads(body)
        with closing(sqlite3.connect(self.file)) as database, database:
            for event in events if isinstance(events, list) else [events]:
                take(database, event)
        self.answer(200)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """No line for each request."""


def main(port: str, file: str) -> None:
    Handler.file, Handler.secret = file, os.environ["HOOKS_SECRET"]
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(TABLE)
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
