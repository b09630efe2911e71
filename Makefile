# Everything a developer runs. The environments are made by themselves.
OLD := .venvs/4.26.7/bin/python
NEW := .venvs/4.29.3/bin/python
PYTHON ?= python3
WORKERS ?= 2

.PHONY: setup unit test test-all bench demo lint clean

setup:
	@$(PYTHON) dev/setup_hosts.py

# One quick run on the older host's Python; the last run covers the rest.
unit: setup
	$(OLD) -m pytest -m "not full" tests/unit
	$(NEW) -m pytest -m "not full" tests/unit

# The browser tests need axe-core, from npm.
test: setup
	@$(PYTHON) dev/axe.py
	$(OLD) -m pytest -m "not full" tests/unit
	$(NEW) -m pytest -m "not full" -n $(WORKERS) --dist loadgroup tests

test-all: setup
	@$(PYTHON) dev/axe.py
	$(OLD) -m pytest tests/unit
	$(NEW) -m pytest -n $(WORKERS) --dist loadgroup tests

# Every program dev/bench_*.py, or those that BENCH names; DATA=path is a retrieval set.
BENCH ?= $(patsubst dev/bench_%.py,%,$(shell grep -l __main__ dev/bench_*.py))
bench: export BENCH_DATA = $(DATA)
bench: setup
	@for name in $(BENCH); do $(NEW) -m dev.bench_$$name || failed=1; done; exit $${failed:-0}

# Needs one environment only; DEMO_VERSION=4.26.7 shows the older host.
demo:
	@$(PYTHON) dev/setup_hosts.py 4.29.3 $(DEMO_VERSION)
	$(NEW) -m dev.demo

lint: setup
	$(NEW) -m ruff check .
	$(NEW) -m ruff format --check .

clean:
	rm -rf .venvs .cache .pytest_cache .ruff_cache .hypothesis
