"""Where the change log lives and how long it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, WithJsonSchema, model_validator

from trucker.config.model import MIB, Model, Text
from trucker.config.values import Bytes, Seconds, in_project, refuse


def parse_location(value: Any, info: ValidationInfo) -> Path | str:
    """A folder as its path, a bucket as its URI."""
    text = str(value) if isinstance(value, str | Path) else ""
    parts = urlsplit(text)
    if "://" not in text:
        if not text:
            raise refuse("the location is empty", remedy=_REMEDY)
        return in_project(Path(text), info)
    if parts.query or parts.fragment or parts.username or parts.password:
        raise refuse(
            "the location has a user, a password, a query or a fragment", remedy="write settings and keys under log.s3"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or len(parts.path) < 2:
            raise refuse("the file URI does not name a folder of this machine", remedy="write file:///shared/folder")
        return in_project(Path(unquote(parts.path)), info)
    if parts.scheme != "s3":
        raise refuse("the location has an unknown scheme", remedy=_REMEDY)
    if not parts.netloc:
        raise refuse("the location names no bucket", remedy="write s3://bucket/prefix")
    return f"s3://{parts.netloc}{parts.path.rstrip('/')}"


_REMEDY = "write a path, file:///shared/folder or s3://bucket/prefix"

Location = Annotated[
    Path | str,
    BeforeValidator(parse_location),
    WithJsonSchema({"type": "string", "minLength": 1, "title": "path or URI"}),
]


class S3Config(Model):
    """How to reach an `s3://` location. Keys not given come from the environment (`AWS_…`) or from the machine."""

    endpoint: Text | None = Field(
        default=None, description="The server's address, `https://host:port`. The default is Amazon's for the region."
    )
    region: Text | None = Field(default=None, description="The region.")
    access_key_id: Text | None = Field(default=None, description="The key's name.")
    secret_access_key: SecretStr | None = Field(default=None, description="The key's secret.")
    session_token: SecretStr | None = Field(default=None, description="The session token of a temporary key.")
    bucket_in_host: bool = Field(
        default=False, description="Use `bucket.host` instead of `host/bucket`, as some servers require."
    )

    @model_validator(mode="after")
    def _whole_key(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise refuse(
                "access_key_id and secret_access_key must be given together",
                key="access_key_id",
                remedy="give both, or neither to use those of the environment",
            )
        return self

    def access(self) -> dict[str, Any]:
        """For the client, by its names; secrets stay hidden."""
        options: dict[str, Any] = {
            key: value
            for key in ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
            if (value := getattr(self, key)) is not None
        }
        # Requests are signed for a region; servers other than Amazon's take its first one.
        if self.endpoint is not None and self.region is None:
            options["region"] = "us-east-1"
        if self.bucket_in_host:
            options["virtual_hosted_style_request"] = "true"
        return options


class LogConfig(Model):
    """Where the change log is, and how long it keeps changes. It always keeps those that a truck has yet to apply."""

    location: Location | None = Field(
        default=None,
        description="Where the change logs of all sources are: a path, `file:///shared/folder` or `s3://bucket/prefix`."
        " The default is `log` in the state folder.",
    )
    s3: S3Config | None = Field(default=None, description="How to reach an `s3://` location.")
    keep: Seconds | None = Field(
        default=None, ge=0, description="Keep changes this long after every truck applied them."
    )
    max_bytes: Bytes | None = Field(default=None, gt=0, description="Keep at most this many bytes of applied changes.")
    segment_bytes: Bytes = Field(
        default=64 * MIB, ge=MIB, description="In a folder: the size after which a new segment file is started."
    )
    put_every: Seconds = Field(
        default=0.1,
        ge=0,
        description="On object storage: the shortest time between two objects. Changes that arrive in between "
        "share one object.",
    )

    @model_validator(mode="after")
    def _s3_for_s3(self) -> Self:
        if self.s3 is not None and not isinstance(self.location, str):
            raise refuse("log.s3 is given, but log.location is not s3://", key="s3", remedy="remove one of them")
        return self
