# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# As pip does: trust the certificates that this system trusts, a company's own among them.
export UV_SYSTEM_CERTS ?= 1
# Tests start some thousand processes: from bytecode they are there sooner.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests test-long test-nodes durations check core cluster cluster-down clean wheels lock licences sbom audit docs
.DELETE_ON_ERROR:

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<1'

$(VENV)/.all: $(BIN)/uv pyproject.toml lab/pyproject.toml constraints.txt
	@echo "installing brim and what it needs into $(VENV): a minute or more, 6.6 GB, most of it torch"
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[all]' -e lab
	touch $@

# Flights that left New York in 2013: train a wide & deep model, kill a worker, add two, and go on.
demo: $(VENV)/.all
	$(BIN)/brim train examples/01-first-job/flights.py --workers 4 \
	    --faults "kill rank 1 at step 40; add 2 at step 80; term rank 0 at step 120"
	@echo "the same weights without faults: $(BIN)/brim train examples/01-first-job/flights.py --workers 1"

# Tests wait half of their time for processes, so two of them share a processor; a file is one worker's.
PYTEST := $(BIN)/python -m pytest -n $(shell echo $$((2 * $$(nproc)))) --dist loadfile --no-loadscope-reorder

# Style, types, the direction of imports, doctests, and all tests but those for `make test-long`.
test: check tests

tests: $(VENV)/.all
	$(PYTEST) -m "not long"

# The same, and how long each file took: those that take longest go first.
durations: $(VENV)/.all
	BRIM_TEST_DURATIONS=1 $(PYTEST) -m "not long"

# Further cases of what the tests above show: more workers, more faults, more models, and with real
# processes what is otherwise shown within one. Longer than the tests above: .ci/nightly has pieces.
test-long: $(VENV)/.all
	$(PYTEST) -m long $(TESTS)

# Tests on nodes of Kubernetes, which they kill and cut off: alone, on three of their own; as root.
# CASES=long: further cases. An interrupt ends their cluster as well.
CASES := not long
NODE_TESTS := tests/kubernetes/test_cluster.py tests/e2e/test_experiments_on_nodes.py tests/e2e/test_guide_on_nodes.py \
    tests/e2e/test_job_on_nodes.py tests/e2e/test_trainjobs_on_nodes.py
test-nodes: $(VENV)/.all
	$(BIN)/python -m brim_lab.kubernetes up --nodes 3 --resource example.com/gpu=8
	trap : INT; BRIM_TEST_NEED_CLUSTER=1 $(BIN)/python -m pytest -m "$(CASES)" $(NODE_TESTS); \
	    status=$$?; $(BIN)/python -m brim_lab.kubernetes down; exit $$status

# Benchmarks in folders that cannot be packages: mypy takes them by name alone.
HYPHENATED := $(patsubst %.py,-m %,$(subst /,.,$(wildcard benchmarks/*-*/*.py)))

check: $(VENV)/.all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy $(HYPHENATED)
	$(BIN)/lint-imports --no-cache

# The pure core alone, with a few cases of each property: seconds.
core: $(VENV)/.all
	BRIM_HYPOTHESIS=quick BRIM_SCHEDULES=100 $(BIN)/python -m pytest -q -m "not exhaustive" \
	    src/brim/errors.py src/brim/domain src/brim/coordination src/brim/policies \
	    tests/domain tests/coordination tests/policies

# The site of all documents, in build/site: search and pictures without a request to any host. Its tools
# have an environment of their own; a link that leads nowhere is an error.
SITE := build/site-env
$(SITE)/.made: $(BIN)/uv pyproject.toml constraints.txt
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(SITE)
	$(BIN)/uv pip install --quiet --python $(SITE)/bin/python -c constraints.txt --group docs
	touch $@

docs: $(SITE)/.made
	$(SITE)/bin/sphinx-build --quiet --fail-on-warning --keep-going --jobs auto --conf-dir docs/site . build/site
	@echo "build/site/index.html"

# What is installed: brim, and its laboratory.
wheels: $(BIN)/uv
	$(BIN)/uv build --quiet --wheel --out-dir dist .
	$(BIN)/uv build --quiet --wheel --out-dir dist lab

# The four of the supply chain: docs/design/dependencies.md. Their tools stay out of the virtual environment.
RUNTIME := train keras s3 onnx simulate cluster dashboard top kubernetes tensorboard mlflow wandb xgboost transformers demo

# Each runtime dependency with the hashes of its files.
lock: $(BIN)/uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --custom-compile-command "make lock" -c constraints.txt --group build $(RUNTIME:%=--extra %) \
	    pyproject.toml -o requirements.lock

# The licence of each, from the metadata of what is installed.
licences: $(VENV)/.all
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group build
	$(BIN)/uv tool run --quiet --from 'pip-licenses>=5.5,<6' pip-licenses --python $(BIN)/python --no-version --with-system \
	    --packages $$(sed -n 's/^\([a-z0-9.-]*\)==.*/\1/p' requirements.lock) --format csv --output-file licences.csv

# What an installation consists of, in CycloneDX's format.
sbom: $(BIN)/uv
	$(BIN)/uv tool run --quiet --from 'cyclonedx-bom>=7,<8' cyclonedx-py requirements requirements.lock \
	    --pyproject pyproject.toml --output-reproducible -o sbom.json

# Known vulnerabilities, without network: make audit ADVISORIES=FILE, of advisories in OSV's format.
audit: $(VENV)/.all
	$(BIN)/python .ci/audit.py $(ADVISORIES)

# Real Kubernetes on this machine, for tests: as root. make cluster NODES=3 CLUSTER="--feature GenericWorkload"
NODES ?= 2
cluster: $(VENV)/.all
	$(BIN)/python -m brim_lab.kubernetes up --nodes $(NODES) --resource example.com/gpu=8 $(CLUSTER)

cluster-down: $(VENV)/.all
	$(BIN)/python -m brim_lab.kubernetes down

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache
