# Every target prepares what it needs, also in a fresh clone. It needs Python 3.11+; with a C compiler Ottla is much
# faster, and the tests also use Java.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DOCS_INSTALLED := .venv/.installed-docs
# Named after the compiler, so that the extensions are built again once there is one.
COMPILER := $(notdir $(or $(shell command -v $(CC) || command -v gcc || command -v clang),none))
COMPILED := .venv/.compiled-by-$(COMPILER)
PYX := $(shell find src -name '*.pyx' -o -name '*.pxd') $(patsubst %.pxd,%.py,$(wildcard src/ottla/sim/*.pxd))

FAST_TESTS := $(wildcard tests/unit tests/scenarios tests/properties tests/simulation tests/fuzz)
REAL_TESTS := $(wildcard tests/processes tests/conformance tests/connect)
SPARK_TESTS := $(wildcard tests/spark)
# Two at a time, whatever the machine has: brokers and clients of one test are processes of their own.
PARALLEL := -n 2

.PHONY: help setup demo test test-fast test-real test-spark prepare simulate siege nightly mutate mutation-map check check-style check-types bench \
	bench-append-stream bench-failover bench-kafka bench-saturation docs docs-site clean

help:
	@echo "make setup   the virtual environment in .venv, from pinned versions, with the compiled extensions"
	@echo "make demo    three brokers, a million records, the leader killed in mid-stream, and the proof that nothing was lost"
	@echo "make test    every test; 'make test-fast' leaves out real clients and killed processes"
	@echo "make simulate SEEDS=1000   whole clusters under seeded faults, on virtual time; also FROM=0, WORKERS=cores"
	@echo "make siege   real brokers under kills, pauses, cuts and failing disks for MINUTES=60; then the check of all that clients saw"
	@echo "make nightly a siege in each shape, an hour each, and campaigns of each simulation; the report is build/nightly/report.md; also MINUTES=, SEEDS="
	@echo "make mutate SAMPLE=50   plants bugs in the modules that protect data and reports those that no test notices; also MODULE=, SEED="
	@echo "make check   style, types, import rules and tidiness"
	@echo "make bench   throughput, latency and cost against the floor of this machine; write-ahead logs beside Apache Kafka"
	@echo "make bench-append-stream   appends and latencies of write-ahead logs, beside the Kafka API, Apache Kafka and bare gRPC"
	@echo "make bench-saturation   goodput, ISR and the waits of other clients while a cluster is offered up to 3 times its peak, 20 minutes"
	@echo "make bench-failover   how long after the death of a leader the next write is acknowledged, and why"
	@echo "make bench-kafka   Ottla beside Apache Kafka on this machine, about 15 minutes; 'ottla bench run FILE' measures any other matrix"
	@echo "make docs    writes the generated pages of docs/ again"
	@echo "make docs-site   builds the documentation into build/site and fails on a broken link"

# Bytecode too: where Python is told to write none, every process would compile all of the package at its start.
setup: $(COMPILED)
	@$(BIN)/python -m compileall -q src

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ottla needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt pip setuptools wheel Cython
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

$(COMPILED): $(INSTALLED) $(PYX) setup.py
	$(BIN)/python setup.py --quiet build_ext --inplace
	$(BIN)/python scripts/extensions_built.py
	@touch $@

demo: setup
	$(BIN)/python -m ottla.demo

# All three, even if one fails; the last lines say how many tests of each passed, failed and were skipped.
test: setup
	+@$(BIN)/python scripts/test_stages.py --make '$(MAKE)' test-fast test-real 'test-spark PREPARED=yes'

test-fast: setup
	$(BIN)/python -m pytest $(PARALLEL) $(FAST_TESTS)

prepare: setup
	$(BIN)/python scripts/prepare_clients.py
	$(BIN)/python scripts/prepare_coordination.py

test-real: prepare
	$(BIN)/python -m pytest -v $(PARALLEL) --dist loadfile --no-loadscope-reorder $(REAL_TESTS)

# Two at a time, each with a Spark of its own: much of the time of one goes into waiting, for processes and for one another.
test-spark: $(if $(PREPARED),setup,prepare)
	$(BIN)/python -m pytest -v $(PARALLEL) --dist loadfile --no-loadscope-reorder --durations 20 $(SPARK_TESTS)

SEEDS ?= 100
FROM ?= 0
simulate: setup
	@$(BIN)/python -m tests.simulation.campaign --kind all --seeds $$(($(SEEDS) / 4)) --from $(FROM) $(if $(WORKERS),--workers $(WORKERS))

MINUTES ?= 5
siege: setup
	$(BIN)/python scripts/prepare_coordination.py
	$(BIN)/python -m tests.processes.siege --minutes $(MINUTES)

# Fourteen shapes of an hour each by default; MINUTES is that of each siege here.
nightly: MINUTES = 60
nightly: SEEDS = 2000
nightly: prepare
	$(BIN)/python -m tests.processes.nightly --minutes $(MINUTES) --seeds $(SEEDS) $(foreach shape,$(SHAPE),--shape $(shape))

# A record of calls, made once, says which tests reach a function: 'make mutation-map'. Without it more tests are run.
SAMPLE ?= 50
SEED ?= 0
MUTATION_JOBS ?= 1
mutate: setup
	$(BIN)/python -m tests.mutation $(foreach module,$(MODULE),--module $(module)) --sample $(SAMPLE) --seed $(SEED) \
		--jobs $(MUTATION_JOBS) $(if $(BUDGET),--budget $(BUDGET)) --simulation-seeds 5

mutation-map: setup
	$(BIN)/python -m tests.mutation --map

check: check-style check-types

check-style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/tidy

check-types: setup
	$(BIN)/mypy

# The append stream in short, one second a case: bench-append-stream has the same cases, longer and in three rounds.
bench: setup
	$(BIN)/python -m ottla.bench.broker
	$(BIN)/python -m ottla.bench.append_stream --kafka --rounds 1 --seconds 1
	$(BIN)/python -m ottla.bench.saturation --quick

bench-saturation: setup
	$(BIN)/python -m ottla.bench.saturation

bench-append-stream: setup
	$(BIN)/python -m ottla.bench.append_stream --kafka

bench-failover: setup
	$(BIN)/python scripts/prepare_coordination.py
	$(BIN)/python -m ottla.bench.failover

bench-kafka: setup
	$(BIN)/python -m ottla bench run benchmarks/kafka.toml

docs: setup
	$(BIN)/python scripts/generate_docs.py

# Its packages are an extra of their own. Once they are installed, the build needs no network.
$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation --editable '.[docs]'
	@touch $@

docs-site: setup $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html; the search needs a server: $(BIN)/python -m http.server --directory build/site"

clean:
	rm -rf .venv .cache build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src -name '*.so' -delete
	find src -name '*.pyx' -exec sh -c 'rm -f "$${1%.pyx}.c"' _ {} \; # of versions that wrote C beside its source
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
