# Everything here works from a fresh clone with Python 3.11 or newer, make and git.
# The environment in .venv is made when first needed and renewed when what it is made from changes.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LEVELS ?= tests/unit tests/contract tests/fleet
PYTEST_ARGS ?=
BENCH_ARGS ?= --quick
SOAK_ARGS ?= --quick --check
CHAOS_ARGS ?= --check
# Tests wait for processes more than they compute: two cores are busy with four at a time.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? 2 * n : 16)))

.PHONY: help demo test test-cluster test-cluster-long chaos lint format bench soak clean

help:
	@echo "make demo    two workers on this machine grade 2,000 answers, one is killed on the way;"
	@echo "             then two train a model together, in three rounds"
	@echo "make test    unit, contract and fleet tests (LEVELS=tests/unit for the quick ones)"
	@echo "make test-cluster       a head and three workers as virtual machines over a real NFS mount (root; see docs/filesystems.md)"
	@echo "make test-cluster-long  the same with more of everything: an hour on two busy cores"
	@echo "make chaos   ten minutes in which something happens to these machines all the time"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make format  ruff format, and the fixes that ruff is sure of"
	@echo "make bench   a few minutes of measuring (BENCH_ARGS=--check for the whole table)"
	@echo "make soak    two minutes of tasks while a process is killed every second (SOAK_ARGS=--check: a million)"
	@echo "make clean   remove the environment, caches and the demo's workspace"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "shardfleet needs Python 3.11 or newer: none found on PATH (or set PYTHON=…)" >&2; exit 2; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make an environment: install its venv module (Debian: apt install python3-venv)" >&2; exit 2; }
	"$(PYTHON)" -m venv $(VENV)

# A stamp is written after the installation, so that one that was interrupted is done again.
$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV), which may take some minutes"
	@$(PIP) install -c constraints.txt -e '.[examples]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV), which may take some minutes"
	@$(PIP) install -c constraints.txt -e '.[dev,examples]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.dev
	@$(PIP) install -c constraints.txt -e '.[bench]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/digits_demo.py

# They start some thousand processes, each of which would compile what it imports.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev
	@$(BIN)/python -m compileall -q ctl fsworker fedavg
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(LEVELS) $(PYTEST_ARGS)

# One process for all that needs the machines, one for the rest; what they measured is in the output.
CLUSTER := -m pytest -v -rP -n 2 --durations=0 tests/cluster

test-cluster: $(VENV)/.dev
	$(BIN)/python $(CLUSTER) $(PYTEST_ARGS)

test-cluster-long: $(VENV)/.dev
	SHARDFLEET_LONG=1 $(BIN)/python $(CLUSTER) $(PYTEST_ARGS)

chaos: $(VENV)/.dev
	PYTHONPATH=. $(BIN)/python bench/chaos.py $(CHAOS_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases examples
	$(BIN)/mypy --explicit-package-bases tests
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/python bench/tasks.py $(BENCH_ARGS)

soak: $(VENV)/.dev
	$(BIN)/python bench/soak.py $(SOAK_ARGS)

clean:
	rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
