"""A connection written as one URL: `postgresql://user:password@host:5432/database?sslmode=require`.

The form is libpq's. Every part may be percent-encoded and is decoded exactly once, after the URL was cut
into parts, so a password may hold any character. Messages never quote the URL: it holds the password (I10).
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote_to_bytes

_SCHEMES: Final = ("postgresql://", "postgres://")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")

_NAMED: Final = {"host": "host", "port": "port", "dbname": "database", "user": "user", "password": "pass"}
_SSL: Final = {"sslmode": "mode", "sslrootcert": "root_certificate", "sslcert": "certificate", "sslkey": "key"}

PARAMETERS: Final = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "gsslib",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "options",
        "passfile",
        "require_auth",
        "requirepeer",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcertmode",
        "sslcompression",
        "sslcrl",
        "sslcrldir",
        "sslnegotiation",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
    }
)
"""libpq's settings that are no connection key of trucker's, hold no secret and may be passed on as they are."""


class UrlError(ValueError):
    """The URL cannot be used. The message names the part, never its value."""


def parse_url(url: str) -> dict[str, Any]:
    """The connection keys a URL gives: host, port, database, user, pass, ssl (a mapping) and parameters."""
    scheme = next((scheme for scheme in _SCHEMES if url.lower().startswith(scheme)), None)
    if scheme is None:
        raise UrlError("the url must begin with postgresql://")
    rest, _, query = url[len(scheme) :].partition("?")
    authority, _, database = rest.partition("/")
    keys = {**_authority(authority), **({"database": _decode(database, "database")} if database else {})}
    ssl: dict[str, str] = {}
    parameters: dict[str, str] = {}
    for name, value in _query(query):
        if name in _NAMED:
            keys[_NAMED[name]] = value
        elif name in _SSL:
            ssl[_SSL[name]] = value
        elif name == "ssl" and value == "true":
            ssl["mode"] = "require"
        elif name in PARAMETERS:
            parameters[name] = value
        else:
            raise UrlError("the url has an unknown query parameter")
    if "database" not in keys:
        raise UrlError("the url does not name a database")
    return keys | ({"ssl": ssl} if ssl else {}) | ({"parameters": parameters} if parameters else {})


def _authority(text: str) -> dict[str, str]:
    """`user:password@host:port`, each part optional. The last @ divides, so one in a password does no harm."""
    credentials, _, place = text.rpartition("@")
    user, colon, password = credentials.partition(":")
    keys = {"user": _decode(user, "user")} if user else {}
    if colon:
        keys["pass"] = _decode(password, "password")
    if "," in place:
        raise UrlError("the url names several hosts; exactly one is allowed")
    if place.startswith("["):
        host, bracket, port = place[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise UrlError("the url's IPv6 address must be in brackets")
        port = port[1:]
    else:
        host, _, port = place.partition(":")
    if host:
        keys["host"] = _decode(host, "host")
    if port:
        if not port.isascii() or not port.isdigit():
            raise UrlError("the url's port must be a number")
        keys["port"] = port
    return keys


def _query(text: str) -> list[tuple[str, str]]:
    pairs = []
    for pair in text.split("&") if text else []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UrlError("a query parameter of the url has no value")
        pairs.append((_decode(name, "query parameter"), _decode(value, "query parameter")))
    return pairs


def _decode(text: str, part: str) -> str:
    if _BAD_PERCENT.search(text):
        raise UrlError(f"the url's {part} has a % that is not part of a percent-code; write %25 for a plain %")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        decoded = "\0"
    if "\0" in decoded:
        raise UrlError(f"the url's {part} is not UTF-8 text after its percent-codes are decoded")
    return decoded
