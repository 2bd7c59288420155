# Everything runs in a virtual environment that the first target makes; only python3, pip and make are
# needed. Another JAX release: make test JAX="jax==0.8.0". Another Python: make test PYTHON=python3.13.

PYTHON ?= python3
JAX ?=
VENV ?= $(if $(JAX),.venvs/$(subst ==,-,$(JAX)),.venv)
ARGS ?=

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
# Halves of the list to each process, so that the tests of a file share what they set up; who is done
# first takes from the other.
PYTEST := $(RUN) -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
READY := $(VENV)/.ready
TEST_READY := $(VENV)/.ready-test
DOCS_READY := $(VENV)/.ready-docs

# What is also run inside a context mesh, Auto and Explicit.
MAP_TESTS := $(addprefix tests/,$(addsuffix .py,map/test_map spmd/test_collectives spmd/test_nesting map/test_transformations \
  mesh/test_placement map/test_one_program spmd/test_oversubscribe map/test_stages \
  errors/test_errors spmd/test_varying_outputs spmd/test_auto_axes map/test_function_identity \
  map/test_several_in_one_jit mesh/test_context_mesh))

# Other people's libraries, which are tested on the JAX release that they all know.
PEERS_JAX ?= jax==0.10.2
PEERS_VENV ?= .venvs/peers
PEERS_READY := $(PEERS_VENV)/.ready-peers

# The compiler for TPUs, which needs none.
TPU_VENV ?= .venvs/tpu
TPU_READY := $(TPU_VENV)/.ready-tpu

# An environment with nothing in it, for what is released.
WHEEL_RUN := .venvs/wheel/bin/python
WHEEL_PIP := $(WHEEL_RUN) -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-mesh test-slow test-repeated test-peers test-tpu test-wheel
.PHONY: bench bench-docs bench-scaling
.PHONY: conformance-docs pictures lint format docs release-check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  Options: PYTHON=python3.13  JAX="jax==0.8.0"  VENV=directory  ARGS="for the command"'

demo: $(READY) ## Run, check, migrate, verify and audit one legacy program, in about four minutes
	@$(RUN) examples/demo/story.py $(ARGS)

test: $(TEST_READY) ## Run the tests on 8 virtual CPU devices, except for the slow ones
	$(PYTEST) -m "not slow" $(ARGS)

test-mesh: $(TEST_READY) ## Run the tests of pmap inside jax.set_mesh, with an Auto and an Explicit mesh
	PMAPX_TEST_MESH=auto $(PYTEST) -m "not slow" $(MAP_TESTS) $(ARGS)
	PMAPX_TEST_MESH=explicit $(PYTEST) -m "not slow" $(MAP_TESTS) $(ARGS)

test-slow: $(TEST_READY) ## Run the slow tests
	$(PYTEST) -m slow $(ARGS)

ROUNDS ?= 20
test-repeated: $(TEST_READY) ## Run the multi-process and signal tests ROUNDS times, under load
	$(RUN) tests/multihost/repeat.py --rounds $(ROUNDS) -- --numprocesses 2 --dist worksteal $(ARGS)

test-peers: $(PEERS_READY) ## Run other libraries with pmapx installed
	$(PEERS_VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal \
	  --verbose --durations 5 tests/peers "tests/docs/test_examples.py::test_example_runs_to_its_end[mnist_flax.py]" \
	  $(ARGS)

test-wheel: $(TEST_READY) ## Build the wheel and the sdist, and try each in an empty environment
	$(PIP) install --quiet --group release
	rm -rf dist .venvs/wheel
	$(RUN) -m build --outdir dist
	$(RUN) tests/release/contents.py dist/*.whl dist/*.tar.gz
	$(RUN) -m venv .venvs/wheel
	$(WHEEL_PIP) install --quiet $(if $(JAX),"$(JAX)") dist/*.whl
	cd / && $(CURDIR)/$(WHEEL_RUN) -I $(CURDIR)/tests/release/smoke.py --core
	$(WHEEL_PIP) install --quiet "pmapx[tools] @ file://$(CURDIR)/$$(ls dist/*.whl)"
	cd / && $(CURDIR)/$(WHEEL_RUN) -I $(CURDIR)/tests/release/smoke.py wheel
	$(WHEEL_PIP) uninstall --quiet --yes pmapx
	$(WHEEL_PIP) install --quiet --no-deps dist/*.tar.gz
	cd / && $(CURDIR)/$(WHEEL_RUN) -I $(CURDIR)/tests/release/smoke.py sdist

test-tpu: $(TPU_READY) ## Compile ahead of time for TPU pods
	$(TPU_VENV)/bin/python -m pytest --verbose --durations 5 tests/audit/test_topology.py \
	  tests/audit/test_pods.py $(ARGS)

bench: $(READY) ## Compare the cost of calls and arrays with JAX's own and hand-written code
	$(RUN) benchmarks/dispatch.py $(ARGS)
	$(RUN) benchmarks/arrays.py $(ARGS)
	$(RUN) benchmarks/processes.py $(ARGS)
	$(RUN) benchmarks/jit_form.py $(ARGS)

bench-docs: $(DOCS_READY) ## Run the benchmarks and update the figures in docs/assets
	$(RUN) benchmarks/dispatch.py --json docs/assets/dispatch.json $(ARGS)
	$(RUN) benchmarks/plot_dispatch.py
	$(RUN) benchmarks/arrays.py --json docs/assets/arrays.json $(ARGS)
	$(RUN) benchmarks/processes.py --json docs/assets/processes.json $(ARGS)
	$(RUN) benchmarks/jit_form.py --json docs/assets/jit_form.json $(ARGS)
	$(RUN) benchmarks/compare.py

conformance-docs: $(TEST_READY) ## Run JAX's own pmap tests with both and update the table in docs/assets
	$(RUN) tests/peers/make_conformance.py

pictures: $(READY) ## Update the README's pictures from real runs (needs Chromium)
	$(RUN) docs/make_pictures.py

bench-scaling: $(TPU_READY) ## Update the table of docs/scaling.md: 8 to 4,096 chips
	$(TPU_VENV)/bin/python benchmarks/scaling.py --json docs/assets/scaling.json $(ARGS)

lint: $(TEST_READY) ## Check style, formatting, types and layers
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(TEST_READY) ## Format the code and fix what ruff can fix
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

# Repository and edit links lead to where the checkout was cloned from.
docs: export PMAPX_REPOSITORY ?= $(shell git config --get remote.origin.url | grep '^https:')
docs: export PMAPX_EDIT_URI ?= $(if $(PMAPX_REPOSITORY),edit/main/docs/)
docs: $(DOCS_READY) ## Build the documentation into site/, and test it in a browser if there is one
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict $(ARGS)
	PMAPX_SITE=site $(RUN) -m pytest --quiet tests/docs/test_site.py

release-check: $(READY) ## Check what docs/releasing.md asks of a release
	$(RUN) tests/release/checklist.py

clean: ## Remove build outputs and environments
	rm -rf .venv .venvs site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

venv: $(TEST_READY) ## Only create the environment

# The stamp is older than pyproject.toml when the dependencies may have changed.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pmapx needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV), once: JAX and the tools. It takes a minute or two."
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module" \
	       "(on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@$(PIP) install --quiet --editable ".[tools]" $(if $(JAX),"$(JAX)")
	@touch $@

# --group came with pip 25.1.
$(TEST_READY): $(READY)
	@echo "Adding what the tests need to $(VENV), once."
	@$(PIP) install --quiet "pip>=25.1"
	@$(PIP) install --quiet --group test --group lint $(if $(JAX),"$(JAX)")
	@touch $@

$(DOCS_READY): $(TEST_READY)
	$(PIP) install --quiet --group docs
	@touch $@

# The name of this environment is its own whatever JAX or VENV say: its libraries are many.
$(PEERS_READY): pyproject.toml
	@$(MAKE) --no-print-directory venv VENV=$(PEERS_VENV) JAX="$(PEERS_JAX)"
	$(PEERS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --group peers "$(PEERS_JAX)"
	@touch $@

$(TPU_READY): pyproject.toml
	@$(MAKE) --no-print-directory venv VENV=$(TPU_VENV)
	$(TPU_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --editable ".[tpu]"
	@touch $@
