"""Connections written as URLs."""

from __future__ import annotations

from typing import Any

import pytest

from trucker.adapters.postgres_url import UrlError, parse_url


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("postgresql://h/d", {"host": "h", "database": "d"}),
        ("postgres://u:p@h:1/d", {"user": "u", "pass": "p", "host": "h", "port": "1", "database": "d"}),
        ("POSTGRES://u@h/d", {"user": "u", "host": "h", "database": "d"}),
        ("postgres://u:@h/d", {"user": "u", "pass": "", "host": "h", "database": "d"}),
        (
            "postgres://u%20s:p%40%2F%3A%25%3F@h/my%20db",
            {"user": "u s", "pass": "p@/:%?", "host": "h", "database": "my db"},
        ),
        ("postgres://u:p%2540@h/d", {"user": "u", "pass": "p%40", "host": "h", "database": "d"}),
        ("postgres://u:a@b@h/d", {"user": "u", "pass": "a@b", "host": "h", "database": "d"}),
        ("postgres://u:a:b+c@h/d", {"user": "u", "pass": "a:b+c", "host": "h", "database": "d"}),
        ("postgres://[::1]:6000/d", {"host": "::1", "port": "6000", "database": "d"}),
        ("postgres://[::1]/d", {"host": "::1", "database": "d"}),
        ("postgres:///d", {"database": "d"}),
        ("postgres://%2Fvar%2Frun/d", {"host": "/var/run", "database": "d"}),
        ("postgres:///d?host=/var/run&port=6000", {"host": "/var/run", "port": "6000", "database": "d"}),
        ("postgres://h?dbname=d&user=u&password=p%26", {"host": "h", "database": "d", "user": "u", "pass": "p&"}),
        ("postgres://h/d?ssl=true", {"host": "h", "database": "d", "ssl": {"mode": "require"}}),
        (
            "postgres://h/d?sslmode=verify-full&sslrootcert=%2Fca.pem&sslcert=c&sslkey=k",
            {
                "host": "h",
                "database": "d",
                "ssl": {"mode": "verify-full", "root_certificate": "/ca.pem", "certificate": "c", "key": "k"},
            },
        ),
        (
            "postgres://h/d?channel_binding=require&options=-c%20x%3D1",
            {"host": "h", "database": "d", "parameters": {"channel_binding": "require", "options": "-c x=1"}},
        ),
    ],
)
def test_good(url: str, keys: dict[str, Any]) -> None:
    assert parse_url(url) == keys


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must begin with postgresql://"),
        ("mysql://secret@h/d", "must begin with postgresql://"),
        ("postgres://u:secret%@h/d", "the url's password has a % that is not part of a percent-code"),
        ("postgres://u:secret%zz@h/d", "the url's password has a %"),
        ("postgres://u:secret%ff@h/d", "the url's password is not UTF-8 text"),
        ("postgres://u:secret%00@h/d", "the url's password is not UTF-8 text"),
        ("postgres://h:secret/d", "the url's port must be a number"),
        ("postgres://h:²/d", "the url's port must be a number"),
        ("postgres://h1,h2/d", "several hosts"),
        ("postgres://[::1/d", "brackets"),
        ("postgres://[::1]x/d", "brackets"),
        ("postgres://u:secret@h", "does not name a database"),
        ("postgres://u:secret@h/", "does not name a database"),
        ("postgres://h/d?secret=1", "an unknown query parameter"),
        ("postgres://h/d?secret", "has no value"),
        ("postgres://h/d?ssl=secret", "unknown query parameter"),
    ],
)
def test_bad(url: str, message: str) -> None:
    with pytest.raises(UrlError, match=message) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)
