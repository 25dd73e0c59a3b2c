"""`python -m trucker` is the command line."""

from __future__ import annotations

import sys

from trucker.cli.main import main

sys.exit(main())
