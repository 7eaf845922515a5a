PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
RUN_ARGS ?=
FULL ?=

.PHONY: setup setup-test run test faults conformance lint fmt types docs openapi migrate bench check lock

.venv/run: requirements.lock pyproject.toml
	@bash scripts/setup $(PYTHON) requirements.lock && touch $@

.venv/test: requirements-test.lock requirements.lock pyproject.toml
	@bash scripts/setup $(PYTHON) requirements-test.lock && touch $@ .venv/run

setup: .venv/run

setup-test: .venv/test

run: setup
	@$(BIN)/toolcrib serve $(RUN_ARGS)

test: setup-test
	@bash scripts/need curl bubblewrap
	@bash scripts/need chromium chromium-driver || echo "no chromium here: the browser tests are skipped"
	$(BIN)/python -m pytest -q -m "not faults and not conformance" -n 2 --dist worksteal --durations=20

# A sample of the kill points, failing writes and random rounds; FULL=1 runs all of them.
faults: setup-test
	@bash scripts/need gcc libc6-dev bubblewrap
	TOOLCRIB_TEST_FULL=$(if $(FULL),1) $(BIN)/python -m pytest -q -m "faults$(if $(FULL), or sampled)" -n 2 --dist loadgroup \
		--hypothesis-profile=$(if $(FULL),full,default) --durations=20 tests

conformance: setup-test
	@bash scripts/need bubblewrap
	@bash scripts/peers $(PYTHON)
	$(BIN)/python -m pytest -q -m conformance tests/conformance

lint: setup-test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

fmt: setup-test
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: setup-test
	$(BIN)/mypy

docs: setup
	$(BIN)/python -m scripts.configuration_docs

openapi: setup
	$(BIN)/toolcrib openapi -o openapi/openapi.json

migrate: setup
	$(BIN)/toolcrib db upgrade

bench: setup-test
	@bash scripts/need wrk bubblewrap
	for which in run files sandbox mcp runs million streams; do $(BIN)/python -m bench.$$which || exit 1; done

check: lint types

lock: setup-test
	@bash scripts/lock $(BIN)/python
