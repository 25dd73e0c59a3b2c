"""A streaming standby of an embedded server, made with pg_basebackup while that one runs."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psycopg

from trucker.errors import TruckerError
from trucker.testing.installation import account, reachable_temporary
from trucker.testing.server import Server

_SETTINGS = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s", "wal_retrieve_retry_interval": "100ms"}


class Standby(Server):
    """A standby of `primary`, which must be running when this one starts for the first time.

    It streams through a physical slot of its own, so that no WAL it needs is thrown away while it is down. `settings`
    are added to the primary's; users and databases are the primary's too.
    """

    def __init__(self, primary: Server, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, primary.version, settings={**primary.settings, **_SETTINGS, **(settings or {})})
        self.primary = primary
        self.slot = f"standby_{secrets.token_hex(4)}"

    def destroy(self) -> None:
        """Stop, delete the data and give up the primary's slot, which would hold its WAL back."""
        super().destroy()
        with contextlib.suppress(psycopg.Error), self.primary.connect() as connection:
            self._drop_slot(connection, self.slot)

    def promote(self) -> None:
        """Make it a primary of its own."""
        with self.connect() as connection:
            connection.execute("select pg_promote()")

    def catch_up(self, timeout: float = 30.0) -> Self:
        """Wait until everything flushed on the primary by now has been replayed here."""
        with self.primary.connect() as connection:
            row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        deadline = time.monotonic() + timeout
        with self.connect() as connection:
            while connection.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() != (True,):
                if time.monotonic() > deadline:
                    raise TruckerError(f"the embedded standby did not reach {row[0]} within {timeout:.0f} s")
                time.sleep(0.01)
        return self

    # -- inside ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            self._place_copy()
        self._password = self.primary.connection("primary").password.get_secret_value()

    def _place_copy(self) -> None:
        """A base backup, behind a link where the account cannot reach `folder` itself."""
        home = self.folder if account().reaches(self.folder) else reachable_temporary("standby")
        data = home / "data"
        data.mkdir(0o700)
        account().own(data)
        command = [
            str(self.bin / "pg_basebackup"),
            f"--pgdata={data}",
            "--write-recovery-conf",
            "--create-slot",
            f"--slot={self.slot}",
            "--checkpoint=fast",
            "--no-sync",
        ]
        environment = {name: value for name, value in self.primary.environment().items() if name != "PGDATABASE"}
        backup = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd="/", check=False, **account().popen
        )
        if backup.returncode:
            shutil.rmtree(data, ignore_errors=True)
            raise TruckerError(f"pg_basebackup of the embedded PostgreSQL failed: {backup.stderr.strip()}")
        if home != self.folder:
            self.data.symlink_to(data)
