# make demo   fit a table with gaps: fill them, find odd cells, write a picture (under a minute of computing)
# make docs   build the pages of documentation into docs/_build/html (minutes; no network)
# make test   linters, type checker, the quick tests and a part of the next one (five minutes at most)
# make torture  kills, damaged files, full disks, extreme numbers: docs/robustness.md (half an hour)
# They set up their own virtual environment in .venv the first time.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo docs test test-slow torture lint format clean

demo: .venv/core
	$(BIN)/pynade demo --out pynade-demo.png

docs: .venv/dev
	$(BIN)/sphinx-build -W --keep-going -n -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

test: lint
	$(BIN)/pytest -n auto
	$(BIN)/python -m tests.torture --scale 0.25 --minutes 5

test-slow: .venv/dev
	$(BIN)/pytest -m "slow and not gpu"

torture: .venv/dev
	$(BIN)/python -m tests.torture

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Stamps: each is newer than what it was installed from. The constraints pin a CPU-friendly torch and the rest.
.venv/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pynade needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/dev: .venv/core paper/pyproject.toml benchmarks/pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]" --editable paper --editable benchmarks
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build
