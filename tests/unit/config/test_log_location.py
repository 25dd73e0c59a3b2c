"""Where the change log is, as trucker.yml says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trucker.changelog.location import ObjectLocation, from_json, location_of, to_json, truth_of
from trucker.config.log import LogConfig
from trucker.config.models import ProjectConfig

KEY = {"access_key_id": "me", "secret_access_key": "s3kr1t"}


def project(tmp_path: Path, **log: Any) -> ProjectConfig:
    source = {"name": "source", "adapter": "postgres"}
    given = {"unique_id": "x", "folder": tmp_path, "connections": [source], "log": log}
    return ProjectConfig.model_validate(given, context={"folder": tmp_path})


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (None, ".trucker/log/source"),
        ("logs", "logs/source"),
        ("/shared/a b", "/shared/a b/source"),
        ("file:///shared/a%20b", "/shared/a b/source"),
        ("file://localhost/shared", "/shared/source"),
    ],
)
def test_a_folder(tmp_path: Path, location: str | None, place: str) -> None:
    found = location_of(project(tmp_path, location=location), "source")
    assert found == tmp_path / place
    assert from_json(to_json(found)) == found == truth_of(found)


@pytest.mark.parametrize("location", ["s3://bucket", "s3://bucket/", "s3://bucket/some/prefix/"])
def test_a_bucket(tmp_path: Path, location: str) -> None:
    found = location_of(project(tmp_path, location=location, s3={"endpoint": "http://here:1", **KEY}), "source")
    assert isinstance(found, ObjectLocation)
    assert str(found) == f"{location.rstrip('/')}/source"
    assert found.folder == tmp_path / ".trucker/log/source"
    assert truth_of(found) == found.elsewhere()
    assert found.revealed() == {"endpoint": "http://here:1", "region": "us-east-1", **KEY}
    assert "s3kr1t" not in repr(found)
    assert from_json(to_json(found)) == ObjectLocation(found.uri, found.folder, found.revealed())


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ({"location": "hdfs://host/path"}, "an unknown scheme"),
        ({"location": "gs://bucket"}, "an unknown scheme"),
        ({"location": ""}, "the location is empty"),
        ({"location": 5}, "the location is empty"),
        ({"location": "s3://"}, "names no bucket"),
        ({"location": "s3:///prefix"}, "names no bucket"),
        ({"location": "s3://me:s3kr1t@bucket"}, "has a user, a password, a query or a fragment"),
        ({"location": "s3://bucket?region=x"}, "has a user, a password, a query or a fragment"),
        ({"location": "file://host/shared"}, "does not name a folder of this machine"),
        ({"location": "file:///"}, "does not name a folder of this machine"),
        ({"location": "/shared", "s3": KEY}, "log.location is not s3://"),
        ({"s3": KEY}, "log.location is not s3://"),
        ({"location": "s3://bucket", "s3": {"access_key_id": "me"}}, "must be given together"),
    ],
)
def test_what_is_refused(log: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LogConfig.model_validate(log)
    assert said in str(caught.value)
    assert "s3kr1t" not in str(caught.value)
