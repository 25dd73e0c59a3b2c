"""The settings of a connection to NATS."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from trucker.adapters.nats import NatsConnection, fixed_beginning


def connection(**more: Any) -> NatsConnection:
    return NatsConnection.model_validate(
        {"name": "bus", "adapter": "nats", "stream": "app", "subject": "app.{{ schema }}.{{ table }}", **more}
    )


def test_the_stream_takes_all_behind_the_fixed_beginning_of_the_subject() -> None:
    assert connection().stream_subjects == ("app.>",)
    assert connection().mark_subject == "app.transactions"
    assert connection(stream={"name": "app", "subjects": "x.*"}).stream_subjects == ("x.*",)
    assert fixed_beginning("a.b.c-{{ table }}.d") == "a.b"
    assert fixed_beginning("a.b") == "a.b"


def test_servers_are_one_or_many() -> None:
    assert connection(servers="nats://a:4222").servers == ("nats://a:4222",)
    assert connection(servers=["nats://a", "tls://b:1"]).servers == ("nats://a", "tls://b:1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"servers": "http://a"}, "not the address"),
        ({"servers": "nats://me:secret@a"}, "has a user or a password in it"),
        ({"servers": "nats://a:port"}, "not the address"),
        ({"user": "me", "token": "secret"}, "has user and token"),
        ({"nkey": "secret", "creds": "secret"}, "has nkey and creds"),
        ({"subject": "{{ schema }}.{{ table }}"}, "does not begin with a fixed name"),
        ({"subject": "app.{{ tabel }}"}, "the template cannot be used"),
        ({"stream": "my.stream"}, "pattern"),
        ({"tls": {"key": "k.pem"}}, "a key without its certificate"),
        ({"transaction_subject": "a.>"}, "pattern"),
    ],
)
def test_what_cannot_be_used_is_refused_without_quoting_secrets(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as refused:
        connection(**settings)
    assert "secret" not in str(refused.value)


def test_a_subject_without_a_fixed_beginning_needs_the_others() -> None:
    settings = {"stream": {"name": "app", "subjects": [">"]}, "transaction_subject": "marks"}
    assert connection(subject="{{ truck }}.{{ table }}", **settings).mark_subject == "marks"


def test_secrets_are_secrets() -> None:
    made = connection(creds="-----BEGIN SECRET")
    assert "BEGIN" not in repr(made)
    assert set(made.secret_keys()) == {"pass", "token", "nkey", "creds"}
