"""Pickles what is sent through Spark without its secrets, which are sent separately (I10).

Spark writes the data of a job to a file on its way to the JVM, and a large function, too; a small function is sent in
memory. So secrets are taken out of everything and sent with a small function.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import threading
from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr

_opening = threading.local()


def seal(things: Sequence[Any]) -> tuple[list[bytes], tuple[str, ...]]:
    """Each thing pickled, with a number in the place of each secret; and the secrets."""
    numbers: dict[str, int] = {}

    def reduce(secret: SecretStr) -> tuple[Any, ...]:
        return _secret, (numbers.setdefault(secret.get_secret_value(), len(numbers)),)

    sealed = []
    for thing in things:
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = {**copyreg.dispatch_table, SecretStr: reduce}
        pickler.dump(thing)
        sealed.append(buffer.getvalue())
    return sealed, tuple(numbers)


def unseal(sealed: bytes, secrets: Sequence[str]) -> Any:
    """The original object, with its secrets."""
    _opening.secrets = secrets
    try:
        return pickle.loads(sealed)
    finally:
        del _opening.secrets


def _secret(number: int) -> SecretStr:
    return SecretStr(_opening.secrets[number])
