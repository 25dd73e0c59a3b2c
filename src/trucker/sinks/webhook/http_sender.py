"""One POST request and its answer, over connections that stay open. Nothing of a body is ever logged or shown (I10)."""

from __future__ import annotations

import contextlib
import math
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.util import Timeout, make_headers

from trucker.adapters.webhook import WebhookConnection
from trucker.errors import SinkError, SinkUnavailable

# What is read of an answer's body, so that its connection can be used again; one that says more is closed.
_READ: Final = 64 * 1024
# The longest `Retry-After` that is believed.
_LONGEST: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A receiver's answer: its status, and how many seconds it asks to be left alone."""

    status: int
    retry_after: float = 0.0
    location: str = ""


class HttpSender:
    """Sends requests to one connection's receiver; any number of threads may use it."""

    def __init__(self, connection: WebhookConnection) -> None:
        self._connection = connection
        wait = connection.timeouts
        self._pool = _pool(connection, Timeout(connect=wait.connect, read=wait.read))
        self._headers = {
            "content-type": "application/json",
            "user-agent": "trucker",
            **{name.lower(): value.get_secret_value() for name, value in connection.headers.items()},
        }

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Raises `SinkUnavailable` where there is no answer."""
        return self._request("POST", url, body, {**self._headers, **headers})

    def look(self) -> Answer:
        """Ask the receiver's host for anything that answers, without effect."""
        return self._request("HEAD", f"{self._connection.origin}/", None, {"user-agent": "trucker"})

    def close(self) -> None:
        self._pool.clear()

    def _request(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        try:
            response = self._pool.request(
                method, url, body=body, headers=headers, retries=False, redirect=False, preload_content=False
            )
        except HTTPError as error:
            raise self._no_answer(error) from None
        answer = Answer(
            response.status,
            _seconds(response.headers.get("Retry-After", "")),
            _origin(response.headers.get("Location", "")),
        )
        with contextlib.suppress(HTTPError, OSError):
            response.read(_READ, decode_content=False)
            if response.read(1, decode_content=False):
                response.close()
        response.release_conn()
        return answer

    def _no_answer(self, error: HTTPError) -> SinkUnavailable:
        place = self._connection.place
        if isinstance(error, ProxyError) and isinstance(error.original_error, HTTPError | ssl.SSLError | OSError):
            what, remedy = "its proxy cannot be used", "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
        elif isinstance(error, SSLError):
            return SinkUnavailable(
                f"{place}: TLS failed: {_verification(error)}",
                remedy="have the receiver show a valid certificate of its host name, or name its authority: "
                "ssl.root_certificate; trucker retries",
                code="TRK715",
            )
        elif isinstance(error, NameResolutionError):
            what, remedy = "the name of its host cannot be resolved", "correct url, or the name service"
        elif isinstance(error, NewConnectionError):  # a kind of the next
            what, remedy = "nobody listens there", "check that it runs, and host and port in url"
        elif isinstance(error, ConnectTimeoutError):
            what, remedy = "no connection in time", "check that it runs and that no firewall is in between"
        elif isinstance(error, ReadTimeoutError):
            what, remedy = "no answer in time", "check what it does, or raise timeouts.read"
        else:
            what, remedy = "the connection broke before an answer", "check that it runs"
        return SinkUnavailable(f"{place}: {what}", remedy=f"{remedy}; trucker retries", code="TRK712")


def _pool(connection: WebhookConnection, timeout: Timeout) -> urllib3.PoolManager:
    """Connections to the receiver, through the proxy that the environment names for it."""
    context = _context(connection) if connection.origin.startswith("https:") else None
    most = connection.parallel
    parts = urlsplit(connection.origin)
    proxies = {} if proxy_bypass(parts.netloc) else getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy is None:
        return urllib3.PoolManager(maxsize=most, timeout=timeout, ssl_context=context)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        credentials = urlsplit(proxy)
        user = f"{credentials.username or ''}:{credentials.password or ''}" if credentials.username else None
        headers = make_headers(proxy_basic_auth=user) if user else None
        return urllib3.ProxyManager(proxy, proxy_headers=headers, maxsize=most, timeout=timeout, ssl_context=context)
    except (HTTPError, ValueError):
        raise SinkError(
            f"{connection.place}: the environment names a proxy that cannot be used",
            remedy="write HTTP_PROXY and HTTPS_PROXY as http://host:port, or list the receiver in NO_PROXY",
            code="TRK716",
        ) from None


def _context(connection: WebhookConnection) -> ssl.SSLContext:
    files = connection.ssl
    try:
        context = ssl.create_default_context(cafile=str(files.root_certificate) if files.root_certificate else None)
        if files.certificate:
            # An encrypted key would be asked for at the terminal.
            context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise SinkError(
            f"{connection.place}: the certificates under ssl cannot be read: {type(error).__name__}",
            remedy="name PEM files that trucker can read, and a private key without a password",
            code="TRK716",
        ) from None
    return context


def _verification(error: SSLError) -> str:
    """What the TLS library says of a certificate, which has no data of ours; otherwise the kind of failure."""
    cause = error.args[0] if error.args else None
    if isinstance(cause, ssl.SSLCertVerificationError):
        return str(cause.verify_message)
    reason = getattr(cause, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else "the handshake broke"


def _seconds(text: str) -> float:
    """What `Retry-After` says: a number of seconds, or a date."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except (TypeError, ValueError):
            return 0.0
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()
    return min(max(seconds, 0.0), _LONGEST) if math.isfinite(seconds) else 0.0


def _origin(location: str) -> str:
    """Of a redirection, the host alone: the rest may hold what was sent."""
    try:
        parts = urlsplit(location)
        return f"{parts.scheme}://{parts.hostname}" if parts.hostname else ""
    except ValueError:
        return ""


def now() -> int:
    return int(time.time())
