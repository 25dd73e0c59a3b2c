"""The command line is quick: it loads nothing heavy before a command needs it."""

from __future__ import annotations

import resource
import subprocess
import sys

HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "psycopg", "duckdb", "pydantic", "jinja2", "yaml", "rich")


def test_import_is_light() -> None:
    code = f"import sys, trucker.cli.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_is_light_and_quick() -> None:
    code = (
        "import sys; from trucker.cli.main import main; code = main(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], code)"
    )
    spent = []
    for _ in range(3):
        before = _spent()
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        spent.append(_spent() - before)
        assert result.stdout.splitlines()[-1] == "[] 0"
    assert min(spent) < 0.5


def _spent() -> float:
    """Seconds of the processor that children have taken; what else the machine does counts for nothing."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
