PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
RUN_ARGS ?=

.PHONY: setup setup-test run test lint fmt types openapi migrate bench check lock

.venv/run: requirements.lock pyproject.toml
	@bash scripts/setup $(PYTHON) requirements.lock && touch $@

.venv/test: requirements-test.lock requirements.lock pyproject.toml
	@bash scripts/setup $(PYTHON) requirements-test.lock && touch $@ .venv/run

setup: .venv/run

setup-test: .venv/test

run: setup
	@$(BIN)/toolcrib serve $(RUN_ARGS)

test: setup-test
	@bash scripts/need curl
	$(BIN)/python -m pytest -q

lint: setup-test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

fmt: setup-test
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: setup-test
	$(BIN)/mypy

openapi: setup
	$(BIN)/toolcrib openapi -o openapi/openapi.json

migrate: setup
	$(BIN)/toolcrib db upgrade

bench: setup-test
	@bash scripts/need wrk && $(BIN)/python -m bench.run

check: lint types

lock: setup-test
	@bash scripts/lock $(BIN)/python
