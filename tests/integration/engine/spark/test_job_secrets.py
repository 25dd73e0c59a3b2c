"""A function so large that Spark puts it into a file: what it holds in secret is not in there (I10)."""

from __future__ import annotations

import operator
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from trucker.engine.spark import job
from trucker.engine.spark.executor_entry import run_task
from trucker.engine.spark.secret_pickle import seal

pytestmark = pytest.mark.spark

SECRET = "s3kr1t-0123456"
SPARKS_OWN_LIMIT = 1 << 20
"""A function larger than this Spark writes into a file by itself."""


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_secrets_are_in_no_file_of_a_job(spark: Any, size: int) -> None:
    from pyspark.cloudpickle import dumps

    ballast = random.Random(size).randbytes(size)  # none that begins like the other
    function = partial(operator.contains, [SecretStr(SECRET), ballast])
    parts = [SecretStr(SECRET), SecretStr("another")]
    assert job.run_job(spark, function, parts) == [True, False]  # type: ignore[arg-type, comparison-overlap]
    (what, *sealed), secrets = seal([function, *parts])
    with job._shared_bytes(spark, what) as held:
        travels = dumps(partial(run_task, None, held, secrets))
        spark.sparkContext._pickled_broadcast_vars.clear()  # what was pickled here is of no job
        folder = spark.sparkContext._temp_dir
        files = [Path(place, name).read_bytes() for place, _, names in os.walk(folder) for name in names]
    assert len(travels) < SPARKS_OWN_LIMIT
    assert any(ballast[:100] in file for file in files) is (size > SPARKS_OWN_LIMIT)
    assert not [data for data in (*files, *sealed) if SECRET.encode() in data]
