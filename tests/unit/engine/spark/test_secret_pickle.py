"""What goes through Spark's files holds no secret (I10), and is whole again at the other end."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from trucker.adapters.postgres import PostgresConnection
from trucker.engine.destination.task_sinks import SinkSpec
from trucker.engine.spark.parts import run_parts
from trucker.engine.spark.secret_pickle import seal, unseal
from trucker.sinks.base import Workspace

PASSWORD = "s3kr1t-of-the-destination"


def _spec(password: str = PASSWORD) -> SinkSpec:
    connection = PostgresConnection.model_validate({"name": "far", "pass": password, "replica_host": "b"})
    return SinkSpec(connection, Workspace("p", Path("spool")))


def test_secrets_are_taken_out_and_put_back() -> None:
    specs = [_spec(), _spec(), _spec("another-s3kr1t"), {"deep": [SecretStr(PASSWORD)]}]
    sealed, secrets = seal(specs)
    assert secrets == (PASSWORD, "another-s3kr1t")
    assert not [one for one in sealed if b"s3kr1t" in one]
    assert [unseal(one, secrets) for one in sealed] == specs
    with pytest.raises(AttributeError):
        pickle.loads(sealed[0])


def _password(spec: SinkSpec, part: SinkSpec) -> str:
    secrets = (one.connection.password.get_secret_value() for one in (spec, part))  # type: ignore[union-attr]
    return " ".join(secrets)


def test_a_function_may_hold_secrets_too() -> None:
    (what, *parts), secrets = seal([partial(_password, _spec()), _spec("one"), _spec("two")])
    assert b"s3kr1t" not in what
    found = list(run_parts(what, secrets, iter(parts)))
    assert found == [f"{PASSWORD} one", f"{PASSWORD} two"]
