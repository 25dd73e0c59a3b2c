"""The settings of webhooks: what is refused, what is secret, and what is read from files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trucker.adapters.webhook import WebhookConnection
from trucker.config.project_folder import load_project
from trucker.errors import ConfigError

SECRET = "hush-hush"


def connection(**settings: Any) -> WebhookConnection:
    content = {"name": "hooks", "adapter": "webhook", "url": "https://example.com/in", **settings}
    return WebhookConnection.model_validate(content)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "ftp://example.com/x"}, "not the URL of an endpoint"),
        ({"url": "example.com/x"}, "not the URL of an endpoint"),
        ({"url": "https://example.com:port/"}, "not the URL of an endpoint"),
        ({"url": "https://example.com/a b"}, "not the URL of an endpoint"),
        ({"url": f"https://me:{SECRET}@example.com/"}, "has a user and a password"),
        ({"url": "https://example.com/#x"}, "has a fragment"),
        ({"url": "https://{{ schema }}.example.com/x"}, "only the path"),
        ({"url": "https://example.com/{{ nobody }}"}, "template cannot be used"),
        ({"url": "https://example.com/{{ table }}", "transactions": True}, "marks of transactions"),
        ({"headers": {"a b": "x"}}, "HTTP does not allow"),
        ({"headers": {"x": f"{SECRET}\r\ny: z"}}, "HTTP does not allow"),
        ({"headers": {"Webhook-Id": SECRET}}, "that trucker gives itself"),
        ({"headers": {"content-length": "1"}}, "that trucker gives itself"),
        ({"headers": SECRET}, "lines of the form"),
        ({"secret": " "}, "the secret is empty"),
        ({"secret": f"whsec_{SECRET}!"}, "is not base64"),
        ({"batch": {"rows": 0}}, "greater than or equal to 1"),
        ({"parallel": 0}, "greater than or equal to 1"),
        ({"ssl": {"key": "x.pem"}}, "a key without a certificate"),
    ],
)
def test_what_is_refused_is_named_and_never_quoted(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        connection(**settings)
    assert SECRET not in str(caught.value)


def test_nothing_secret_is_shown() -> None:
    made = connection(
        url=f"https://example.com:8443/{SECRET}?token={SECRET}", headers={"Authorization": SECRET}, secret=SECRET
    )
    assert SECRET not in f"{made} {made!r} {made.model_dump_json()} {made.place} {made.origin}"
    assert made.origin == "https://example.com:8443"
    assert pickle.loads(pickle.dumps(made)) == made


def test_headers_and_secrets_come_from_files_and_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "trucks" / "t").mkdir(parents=True)
    (tmp_path / "trucks" / "t" / "truck.yml").write_text("input: {connection: a, tables: [x]}\noutput: hooks\n")
    (tmp_path / "trucker.yml").write_text("""\
connections:
  - {name: a}
  - name: hooks
    adapter: webhook
    url: "https://example.com/{{ schema }}/{{ table }}"
    headers_path: headers
    secret_path: secret
""")
    (tmp_path / "trucks" / "t" / "truck.yml").write_text(
        "input: {connection: a, tables: [x]}\noutput: {connection: hooks}\non_error: dead_letter\n"
    )
    (tmp_path / "headers").write_text("Authorization: Bearer one\n\nX-Shop: a:b\n")
    (tmp_path / "secret").write_text("first\n")
    made = load_project(tmp_path).connection("hooks")
    assert isinstance(made, WebhookConnection)
    assert made.url.get_secret_value().endswith("/{{ schema }}/{{ table }}")
    assert _headers(made) == {"Authorization": "Bearer one", "X-Shop": "a:b"}
    (tmp_path / "headers").write_text("Authorization: Bearer two")
    (tmp_path / "secret").write_text("second")
    again = made.refreshed()
    assert _headers(again) == {"Authorization": "Bearer two"}
    assert again.secret is not None
    assert again.secret.get_secret_value() == "second"
    (tmp_path / "headers").write_text("half a line")
    assert _headers(again.refreshed()) == {"Authorization": "Bearer two"}
    (tmp_path / "headers").write_text("Authorization: Bearer three")
    (tmp_path / "secret").write_text("whsec_half!")
    assert again.refreshed() is again
    (tmp_path / "secret").write_text("third")
    assert _headers(again.refreshed()) == {"Authorization": "Bearer three"}
    assert _headers(again.refreshed().refreshed()) == {"Authorization": "Bearer three"}
    (tmp_path / "headers").unlink()
    assert _headers(again.refreshed()) == {"Authorization": "Bearer two"}


def test_a_file_of_headers_that_are_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trucker.yml").write_text(
        "connections:\n  - {name: hooks, adapter: webhook, url: 'https://example.com', headers_path: headers}\n"
    )
    (tmp_path / "headers").write_text(SECRET)
    with pytest.raises(ConfigError, match="lines of the form") as caught:
        load_project(tmp_path)
    assert SECRET not in str(caught.value)


def _headers(made: WebhookConnection) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in made.headers.items()}
