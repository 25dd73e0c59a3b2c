"""Errors of files in words: the path, the reason, and a remedy. Permissions are tried by `acceptance/test_files.py`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trucker.errors import ChangeLogError, ChangeLogFull, FileError
from trucker.file_errors import all_explained, explaining, file_error, file_trouble, folder_trouble


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at all")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return tmp_path


LONG = "x" * 300
FOLDERS = {
    "file": "file is a file where a folder is needed",
    "file/below": "file is a file where a folder is needed",
    "link": "which does not exist",
    "link/below": "which does not exist",
    "loop": "leads to itself",
    LONG: "the name is too long",
    f"new/{LONG}": "the name is too long",
}
FILES = {
    "folder": "folder is a folder where a file is needed",
    "file/below": "file is a file where a folder is needed",
    "link/below": "which does not exist",
    "loop": "leads to itself",
    LONG: "the name is too long",
}


@pytest.mark.parametrize(("name", "reason"), FOLDERS.items())
def test_an_unusable_folder_is_reported_beforehand(place: Path, name: str, reason: str) -> None:
    path = place / name
    trouble = folder_trouble(path)
    assert trouble is not None
    with pytest.raises(OSError, match="Errno") as caught:
        path.mkdir(parents=True)
    for error in (trouble, caught.value):
        told = file_error(error, "making", path, ChangeLogError, code="TRK306", setting="log.location")
        assert reason in told.message
        assert str(path) in told.message
        assert told.remedy.endswith("or name another path with `log.location`")
        assert told.code == "TRK306"


@pytest.mark.parametrize(("name", "reason"), FILES.items())
def test_an_unusable_file_is_reported_beforehand(place: Path, name: str, reason: str) -> None:
    path = place / name
    trouble = file_trouble(path)
    assert trouble is not None
    with pytest.raises(OSError, match="Errno") as caught:
        path.open("a").close()
    for error in (trouble, caught.value):
        assert reason in file_error(error, "opening", path).message


@pytest.mark.parametrize("name", ["folder", "new", "new/below", "new/below/it"])
def test_a_folder_that_can_be_used_or_created(place: Path, name: str) -> None:
    assert folder_trouble(place / name) is None
    assert not (place / "new").exists()


def test_a_file_that_can_be_used_or_created(place: Path) -> None:
    (place / "good link").symlink_to(place / "folder" / "new")
    for name in ("file", "new", "new/below", "good link"):
        assert file_trouble(place / name) is None, name
    assert not (place / "new").exists()


@pytest.mark.parametrize(
    ("number", "reason", "remedy"),
    [
        (errno.ENOSPC, "No space left on device", "free space"),
        (errno.EDQUOT, "quota", "raise the quota"),
        (errno.EROFS, "read-only", "mount"),
        (errno.EFBIG, "larger than allowed", "ulimit -f"),
        (errno.EMFILE, "too many files", "ulimit -n"),
        (errno.EIO, os.strerror(errno.EIO), "check the disk"),
    ],
)
def test_other_reasons(place: Path, number: int, reason: str, remedy: str) -> None:
    told = file_error(OSError(number, os.strerror(number)), "writing", place / "new" / "file")
    assert reason in told.message
    assert remedy in told.remedy
    assert told.code == "TRK604"


def test_a_full_disk_may_be_of_another_class(place: Path) -> None:
    with (
        pytest.raises(ChangeLogFull) as caught,
        explaining("writing", place, ChangeLogError, code="TRK306", full=ChangeLogFull),
    ):
        raise OSError(errno.ENOSPC, "")
    assert caught.value.transient
    assert caught.value.code == "TRK305"


def test_an_untranslated_file_error_is_translated_in_the_outermost_call(place: Path) -> None:
    with pytest.raises(FileError, match="is a folder"), all_explained():
        (place / "folder").read_text()
    with pytest.raises(FileError, match="No space"), all_explained():
        raise OSError(errno.ENOSPC, "")
    with pytest.raises(ConnectionError), all_explained():
        raise ConnectionResetError(errno.ECONNRESET, "")
