"""The headers by which a receiver knows a request and its sender, as the Standard Webhooks specification has them.

    webhook-id          what the request is about: the same for every try of the same events
    webhook-timestamp   when this try was signed, in seconds since 1970: a receiver refuses what is too old
    webhook-signature   `v1,` and the base64 of HMAC-SHA256(key, id.timestamp.body); with several keys one for each,
                        separated by blanks

An id never has a dot, so that no part of what is signed can be moved to another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

_VISIBLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def request_id(ids: Sequence[str]) -> str:
    """The id of a request with these events: of one event its own, of an array a digest of them all. After a restart
    arrays may be cut elsewhere: then they are other requests, and have other ids."""
    if len(ids) == 1:
        return header_text(ids[0]).replace(" ", "%20").replace(".", "%2E")
    digest = hashlib.blake2b("\0".join(ids).encode(), digest_size=16)
    return f"array-{digest.hexdigest()}"


def header_text(text: str) -> str:
    """A text as a header may have it: what is not visible ASCII, and the percent sign, as percent-codes of UTF-8."""
    return quote(text, safe=_VISIBLE)


def signed_headers(name: str, timestamp: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The headers of one try; without keys it is not signed."""
    headers = {"webhook-id": name, "webhook-timestamp": str(timestamp)}
    if keys:
        content = b".".join((name.encode(), str(timestamp).encode(), body))
        digests = (base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys)
        headers["webhook-signature"] = " ".join(f"v1,{digest}" for digest in digests)
    return headers
