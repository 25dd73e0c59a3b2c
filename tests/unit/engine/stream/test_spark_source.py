from __future__ import annotations

from pathlib import Path

from trucker.changelog.location import ObjectPlace
from trucker.engine.stream.spark_source import log_source


def test_every_log_is_a_data_source_of_its_own() -> None:
    """Two projects of one session may have a source of the same name."""
    logs = Path("/one/log/shop"), Path("/two/log/shop"), ObjectPlace("s3://one/shop"), ObjectPlace("s3://two/shop")
    sources = [log_source(log, "shop") for log in logs]
    assert len({source.name() for source in sources}) == len(logs)
    assert [source.log for source in sources] == list(logs)


def test_a_log_keeps_its_name_when_it_is_read_again() -> None:
    """What a session has registered does not grow with every start."""
    log = Path("/one/log/shop")
    assert log_source(log, "shop").name() == log_source(log, "shop").name()
