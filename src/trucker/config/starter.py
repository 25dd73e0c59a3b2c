"""The project that `trucker init` writes: every setting with its default, commented."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trucker.errors import ConfigError, Place
from trucker.file_errors import reason_and_remedy

TRUCKER_YML: Final = """\
# A trucker project. Every key is described in docs/reference/configuration.md.
# A value in double braces comes from the environment, as below, or from a file: file("/run/secrets/password").
# Every key of a connection also has a form that reads a file: pass_path: /run/secrets/password.

# Distinguishes this project from others on the same servers: part of the names of the slot and the publication.
# unique_id: my_project

connections:
  # Where changes come from: PostgreSQL 14 or later with wal_level = logical.
  - name: source
    adapter: postgres
    host: {{ env("SOURCE_HOST", "localhost") }}
    port: {{ env("SOURCE_PORT", "5432") }}
    database: {{ env("SOURCE_DATABASE", "postgres") }}
    user: {{ env("SOURCE_USER", "postgres") }}
    pass: {{ env("SOURCE_PASSWORD", "") }}
    # ssl: verify-full                        # libpq's modes, or a mapping:
    # ssl: {mode: verify-full, root_certificate: ca.pem}
    # url: postgresql://user:password@host/database?sslmode=require     # instead of host, port, database, user, pass
    # replica_host: standby.example.com       # read from a standby; replica_port, _database, _user, _pass likewise
    # publication: made_by_the_dba            # an existing one; trucker does not change it
    # slot: made_by_the_dba

  # Where changes go: postgres, duckdb, jsonl (a folder of JSON-lines files) or stdout.
  - name: warehouse
    adapter: duckdb
    path: warehouse.duckdb

# state: .trucker             # the change log and other local state
# heartbeat: 10s              # how often an idle source's slot is advanced; 0: never
# spark:
#   master: local[*]          # or a cluster
#   settings:
#     spark.driver.memory: 2g
# log:                        # the change log always keeps what a truck has yet to apply
#   keep: 7d                  # and applied changes this long
#   max_bytes: 10 GiB         # but no more of them than this
#   segment_bytes: 64 MiB
# batch:
#   max_bytes: 64 MiB         # the most bytes in one micro-batch
# retry:
#   first: 500ms              # the first and the longest wait before a retry
#   longest: 30s
# copy:                       # for trucks with input.copy: incremental
#   max_rows_per_second: 20000
#   chunk_seconds: 2s         # how long one read of the source may take
# slow_query_threshold_ms: 1000 # slower statements of SQL files are logged, without data
"""

TRUCK_YML: Final = """\
# A truck: what it reads and where it writes. Its name is its folder's.
input:
  connection: source
  tables:                     # or table: public.orders
    - public.*
    # - "!public.audit_*"     # except these
  # only_columns: [id, name]
  # except_columns: [password]
  # where: region = 'EU'      # a condition on the source's rows
  # copy: incremental         # large tables in short transactions, resumed after an interruption
output:
  connection: warehouse
  # schema: shop              # for all tables; or table: shop.orders for one; the default is the source's names
  # columns:
  #   price: {unfit: text}    # what the destination cannot hold: error (the default), null or text
# rules:                      # applied to rows before they are written
#   - mask: {column: email, keep_first: 1, keep_last: 4}
#   - exclude: [password]
"""

IGNORED: Final = (".trucker/", "*.duckdb", "*.duckdb.wal")


def write_starter(folder: Path) -> list[Path]:
    """Write a new project and return its files. Nothing is overwritten: raises `ConfigError` before writing at all."""
    files = {folder / "trucker.yml": TRUCKER_YML, folder / "trucks" / "example" / "truck.yml": TRUCK_YML}
    try:
        for path in files:
            if path.exists() or path.is_symlink():
                raise ConfigError(
                    "the file already exists; it was not changed",
                    place=Place(str(path)),
                    remedy="name another folder, or remove the file first",
                    code="TRK112",
                )
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return [*files, _ignore_state(folder / ".gitignore")]
    except OSError as error:
        reason, remedy = reason_and_remedy(error, Path(error.filename or folder))
        raise ConfigError(
            f"the project cannot be written: {reason}",
            place=Place(str(folder)),
            remedy=f"{remedy}, or name another folder: trucker init FOLDER",
            code="TRK112",
        ) from None


def _ignore_state(path: Path) -> Path:
    """Keep state out of version control; lines that are there stay."""
    present = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = [*present, *(line for line in IGNORED if line not in present)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
