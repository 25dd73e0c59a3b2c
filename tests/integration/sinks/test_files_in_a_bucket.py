"""The files sink on object storage: the same files in a bucket, and errors of the storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs as fs
import pytest

from trucker.adapters.files import FilesConnection
from trucker.change import Lsn, TableId
from trucker.errors import SinkError, SinkUnavailable
from trucker.finding import Level
from trucker.sinks.base import Workspace
from trucker.sinks.batch import Batch, Work
from trucker.sinks.committer import Committer
from trucker.sinks.files.sink import FilesSink
from trucker.sinks.target import Target
from trucker.testing.handmade import changes_of, insert, schema_of
from trucker.testing.object_storage import ObjectStorage

T = schema_of(TableId("public", "t"), {"id": "integer", "name": "text"}, ["id"])
TARGET = Target("main", T, T.table)


def make(folder: Path, location: str, s3: dict[str, Any], **settings: Any) -> FilesSink:
    given = {"name": "lake", "adapter": "files", "location": location, "s3": s3, "file_type": "parquet", **settings}
    return FilesSink(FilesConnection.model_validate(given), Workspace("p", folder / "work"))


def commit(sink: Committer, step: int) -> None:
    batch = Batch(Lsn(step), Lsn(step + 1), {"main": Lsn(step + 1)}, targets=(TARGET,))
    changes = changes_of(T, [insert({"id": str(step), "name": "x" * 1000})], lsn=Lsn(step))
    sink.commit(batch, [sink.write(Work(batch, TARGET, 0), iter([changes]))])


def test_files_in_a_bucket(
    shared_storage: ObjectStorage, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: a crash between the manifest and the file; readers with Arrow find each change once."""
    location = f"{bucket}/some/prefix"

    def reader() -> list[int]:
        s3 = fs.S3FileSystem(
            access_key=shared_storage.access_key,
            secret_key=shared_storage.secret_key,
            endpoint_override=shared_storage.endpoint,
            region="us-east-1",
        )
        folder = f"{location.removeprefix('s3://')}/main/public.t"
        if s3.get_file_info(folder).type is fs.FileType.NotFound:
            return []
        return list(ds.dataset(folder, filesystem=s3, format="parquet").to_table().column("id").to_pylist())

    sink = Committer(make(tmp_path, location, shared_storage.s3, rotate_bytes=1))
    assert sink.open() == {}
    commit(sink, 1)
    assert reader() == [1]

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FilesSink, "_make", crash)
        with pytest.raises(KeyboardInterrupt):
            commit(sink, 2)
    assert reader() == [1]
    again = make(tmp_path, location, shared_storage.s3)
    assert again.check()[0].level is Level.OK
    resumed = Committer(again)
    assert resumed.open()["main"].lsn == 3
    assert reader() == [1, 2]
    commit(resumed, 3)
    assert reader() == [1, 2]
    resumed.close()
    assert reader() == [1, 2, 3]


def test_errors_of_the_storage_say_what_to_do(shared_storage: ObjectStorage, bucket: str, tmp_path: Path) -> None:
    """I10: the key is in none of them."""
    key = {**shared_storage.s3, "secret_access_key": "wrong-secret-key"}
    with pytest.raises(SinkError, match=r"TRK752.*refuses.*403") as refused:
        make(tmp_path, bucket, key).open()
    assert not isinstance(refused.value, SinkUnavailable)
    assert "wrong-secret-key" not in json.dumps([str(refused.value), refused.value.remedy])
    (finding,) = make(tmp_path, bucket, key).check()
    assert (finding.level, finding.code) == (Level.ERROR, "TRK752")
    with pytest.raises(SinkError, match=r"TRK752.*does not exist"):
        commit(Committer(make(tmp_path, "s3://no-such-bucket-here", shared_storage.s3)), 1)
    away = {**shared_storage.s3, "endpoint": "http://127.0.0.1:9"}
    with pytest.raises(SinkUnavailable, match=r"TRK752.*does not answer"):
        make(tmp_path, bucket, away).open()
