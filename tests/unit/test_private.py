"""Folders and files that only the account that runs trucker can read, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from trucker import private
from trucker.errors import FileError


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """A umask that forbids nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir(0o755)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_their_owners_alone(place: Path) -> None:
    private.make_folder(place / "a" / "b")
    private.write_text(place / "a" / "text", "x")
    private.write_bytes(place / "a" / "bytes", b"x")
    private.create(place / "a" / "empty")
    with open(place / "a" / "opened", "ab", opener=private.open_file) as file:
        file.write(b"x")
    assert {mode(place / "a"), mode(place / "a" / "b")} == {0o700}
    assert {mode(file) for file in (place / "a").iterdir() if file.is_file()} == {0o600}


def test_a_file_where_a_folder_should_be_is_an_error(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(OSError, match="file"):
        private.make_folder(place / "file" / "below")
    with pytest.raises(FileExistsError):
        private.make_folder(place / "file")


def test_a_shared_folder_passes_on_what_its_group_may(place: Path) -> None:
    place.chmod(0o2770)
    private.make_folder(place / "a" / "b")
    private.write_text(place / "a" / "b" / "text", "x")
    assert mode(place / "a") & 0o777 == mode(place / "a" / "b") & 0o777 == 0o770
    assert mode(place / "a" / "b" / "text") == 0o660


def test_group_access_without_setgid_is_not_passed_on(place: Path) -> None:
    place.chmod(0o770)
    private.make_folder(place / "a")
    private.write_text(place / "text", "x")
    assert mode(place / "a") == 0o700
    assert mode(place / "text") == 0o600


def test_a_missing_folder_is_made_private(place: Path) -> None:
    place.chmod(0o2775)
    private.secure(place / "state")
    assert mode(place / "state") == 0o700


@pytest.mark.parametrize(("group", "after"), [(False, 0o700), (True, 0o750)])
@pytest.mark.parametrize("content", [None, "lock", "source.json"])
def test_a_folder_of_truckers_is_corrected(place: Path, content: str | None, group: bool, after: int) -> None:
    if content is not None:
        (place / content).touch()
    assert private.exposure(place, group=group) is None
    private.secure(place, group=group)
    assert mode(place) == after
    private.secure(place, group=group)
    assert mode(place) == after


def test_a_folder_with_files_of_others_is_refused_and_stays_as_it_is(place: Path) -> None:
    (place / "letter.txt").touch()
    refused = private.exposure(place, setting="log.location")
    assert refused is not None
    with pytest.raises(FileError) as caught:
        private.secure(place, setting="log.location")
    assert str(caught.value) == str(refused)
    assert caught.value.code == "TRK603"
    assert f"chmod go-rwx {place}" in caught.value.remedy
    assert "`log.location`" in caught.value.remedy
    assert mode(place) == 0o755
    place.chmod(0o700)
    private.secure(place)


def test_a_folder_for_everybodys_files_is_refused_though_trucker_has_used_it(place: Path) -> None:
    (place / "lock").touch()
    place.chmod(0o1777)
    with pytest.raises(FileError, match="1777"):
        private.secure(place)
    assert mode(place) == 0o1777


def test_another_accounts_folder_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    assert private.exposure(place) is not None
    with pytest.raises(FileError, match="other accounts can read"):
        private.secure(place)
