# Verbs for this repository; `make` lists them. Each sets up what it needs: nothing but Python has to be there.

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
POOLER := $(VENV)/.pooler
BROKER := $(VENV)/.broker
FOUND := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
PYTHON ?= $(FOUND)
ARGS ?=

# Images and shells often set this. Every process would compile all modules that it imports: a tenth of the tests' time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-quick pgbouncer kafka soak docs clean

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY) ## a shop under load, replicated twice, killed once, compared at the end
	$(PY) -m trucker.testing.demo $(ARGS)

test: $(READY) $(POOLER) $(BROKER) ## every test but the soak
	$(PY) -m trucker.engine.spark.cds_archive
	$(PY) -m pytest -m "not soak" -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(READY) ## lint, format, types, import arrows, sizes, clocks, stores, names, generated documentation
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) tools/check_imports.py
	$(PY) tools/check_sizes.py
	$(PY) tools/check_clocks.py
	$(PY) tools/check_stores.py
	$(PY) tools/check_names.py
	$(PY) tools/gen_docs.py --check

bench: $(READY) ## measure against PostgreSQL's own tools, half an hour; ARGS="--only stream" for a part
	$(PY) -m trucker.engine.spark.cds_archive
	$(PY) bench/run.py $(ARGS)

bench-quick: $(READY) ## the same table in a small form, under three minutes
	$(PY) -m trucker.engine.spark.cds_archive
	$(PY) bench/run.py --quick $(ARGS)

pgbouncer: $(READY) ## get a pgbouncer for the tests of the pooler, without root
	$(PY) tools/get_pgbouncer.py

kafka: $(READY) ## get the jars of a Kafka broker for the tests of that destination, by Maven
	$(PY) tools/get_kafka.py

soak: $(READY) $(POOLER) $(BROKER) ## the long campaign
	$(PY) -m trucker.engine.spark.cds_archive
	TRUCKER_SEED=$${TRUCKER_SEED:-new} $(PY) -m pytest -m soak --timeout=0 $(ARGS)

docs: $(READY) ## write the generated documentation anew
	$(PY) tools/gen_docs.py

clean: ## remove what the other verbs made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "trucker needs Python 3.11 or newer with the modules venv and ensurepip" \
		"(Debian and Ubuntu: the package python3-venv); if you have one, name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Once for each environment; where it is not to be had, this says so, and the tests that need it are skipped.
$(POOLER): $(READY) tools/get_pgbouncer.py
	$(PY) tools/get_pgbouncer.py
	@touch $@

$(BROKER): $(READY) tools/get_kafka.py tools/kafka_jars.sha256
	$(PY) tools/get_kafka.py
	@touch $@
