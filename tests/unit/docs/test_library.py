"""What the package exports is there, typed, and described in the reference of the library."""

from __future__ import annotations

import trucker
from fixtures.documents import ROOT


def test_every_exported_name_is_there_and_described() -> None:
    page = (ROOT / "docs" / "reference" / "library.md").read_text(encoding="utf-8")
    for name in trucker.__all__:
        assert getattr(trucker, name) is not None
        assert name == "__version__" or f"`{name}" in page, f"{name} is not in docs/reference/library.md"
