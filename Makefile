# `make compare` and `make test` set up what they need in .venv; nothing else has to be installed first.
#
#   make compare ARGS="--text book.txt"     encodings compared by training on real text
#   make test                               lint, types, import contract, tests (CI=1: a missing asset is a failure)
#   make test TESTS=tests/test_present.py   lint and one file
#   make slow | make lint | make bench

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help compare test slow lint bench clean

BIN := .venv/bin
ARGS ?=
TESTS ?=
# One thread for each process: the tests are many small operations, and several processes run at once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
WORKERS ?= -n logical --maxprocesses 4

help:
	@sed -n 's/^#   //p' Makefile

# One stamp for each extra, renewed when what it depends on changes.
.venv/.installed-%: pyproject.toml constraints.txt scripts/install
	scripts/install $*
	@touch $@

compare: .venv/.installed-lab
	$(BIN)/eigenclock compare $(ARGS)

lint: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

test: .venv/.installed-dev
	scripts/test-assets
	@$(MAKE) --no-print-directory lint
	$(PYTEST) $(WORKERS) $(TESTS)

slow: .venv/.installed-dev
	scripts/test-assets
	$(PYTEST) -m slow --timeout 3600 $(TESTS)

bench: .venv/.installed-lab
	$(BIN)/eigenclock bench $(ARGS)

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache
