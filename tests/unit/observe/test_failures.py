"""A status says in one place what has failed."""

from __future__ import annotations

from trucker.observe.status import FailedTable, ProjectStatus, TruckPhase, TruckStatus


def _status(*trucks: TruckStatus) -> ProjectStatus:
    return ProjectStatus("shop", "/shop", False, 0, "", 0, 0, trucks)


def test_a_truck_that_failed_and_a_table_that_is_set_aside_are_failures() -> None:
    table = FailedTable("public.orders", "[TRK401] no", 0, "0/1", None, False)
    status = _status(
        TruckStatus("fine", "shop", "copy", TruckPhase.STOPPED),
        TruckStatus("partly", "shop", "copy", TruckPhase.STOPPED, failed=(table,)),
        TruckStatus("broken", "shop", "copy", TruckPhase.FAILED, error="[TRK402] gone"),
    )
    assert status.failures == ("truck partly, table public.orders: [TRK401] no", "truck broken: [TRK402] gone")


def test_a_project_that_is_well_or_tries_again_has_none() -> None:
    retrying = TruckStatus("slow", "shop", "copy", TruckPhase.RETRYING, error="[TRK401] unavailable")
    assert _status(TruckStatus("fine", "shop", "copy", TruckPhase.STREAMING), retrying).failures == ()
