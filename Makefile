# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# As pip does: trust the certificates that this system trusts, a company's own among them.
export UV_SYSTEM_CERTS ?= 1

.PHONY: demo test check core clean
.DELETE_ON_ERROR:

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<1'

$(VENV)/.all: $(BIN)/uv pyproject.toml constraints.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[all]'
	touch $@

# Flights that left New York in 2013: train a wide & deep model, kill a worker, add two, and go on.
demo: $(VENV)/.all
	$(BIN)/brim train examples/01-first-job/flights.py --workers 4 \
	    --faults "kill rank 1 at step 40; add 2 at step 80; term rank 0 at step 120"

# Style, types, the direction of imports, doctests and every test.
test: check
	$(BIN)/python -m pytest -n auto --dist loadfile

check: $(VENV)/.all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The pure core alone: seconds.
core: $(VENV)/.all
	$(BIN)/python -m pytest src/brim/errors.py src/brim/domain src/brim/coordination src/brim/policies \
	    tests/domain tests/coordination tests/policies

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache
