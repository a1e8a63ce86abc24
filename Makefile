# `make run` is all that is needed; the rest is for whoever works on it.
.DEFAULT_GOAL := help
.PHONY: help setup run test chaos interop bench k8s lint docs lock clean

PYTHON ?= python3
CONFIG ?= config/agent.yaml
KILLS ?= 1000
BIN := .venv/bin
READY := .venv/.ready
DOCS := .venv/docs

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## Create .venv from requirements.lock; does nothing when up to date

run: setup ## Start the mesh and its web chat, with config/agent.yaml (CONFIG=… for another); Ctrl-C stops both
	@exec $(BIN)/mesh up --web $(CONFIG)

test: setup ## Run the whole test suite, in three runs side by side (ARGS=… go to pytest, in one run)
	@exec $(if $(ARGS),$(BIN)/pytest $(ARGS),$(BIN)/python -m tests.suite)

# Seven suites share the kills: a single agent, a tree, agents that are called under a budget, hundreds of agents that
# others start, as many with whom people step in, calls that queue before a slow tool, and calls of a tool with a check
# (and as many without one). As many kills meet mcp-filesystem while a mesh writes. What takes long with it runs as well, and 10,000 shell commands are judged.
# Half as many losses meet three machines with a network between them, for which it has to run as root.
chaos: setup ## Kill processes at random 1,000 times (KILLS=… for another number); nothing may be lost
	@CHAOS_KILLS=$$(( ($(KILLS) + 13) / 14 )) CHAOS_KILLS_AMONG_AGENTS=$$(( ($(KILLS) + 1) / 2 )) \
	  CHAOS_LOSSES=$$(( ($(KILLS) + 1) / 2 )) $(BIN)/pytest -m chaos tests/cluster tests/servers tests/policy tests/tree \
	  -o log_cli=true --log-cli-level=INFO --log-disable=httpx $(ARGS)

interop: setup ## The programs by others, and the A2A compatibility kit (TCK=… says where it is)
	@$(BIN)/pytest tests/interop $(ARGS)
	@$(if $(TCK),$(BIN)/python -m tests.interop.kit.run "$(TCK)",echo "No TCK=… given: the compatibility kit was not run")

bench: setup ## Measure latency, throughput and CPU (ARGS=… go to the bench)
	@$(BIN)/python -m bench $(ARGS)

k8s: setup ## Hold the manifests of k8s/ against the definitions of custom kinds (CRDS=… is a folder of these)
	@$(BIN)/pytest tests/k8s -q
	@$(if $(CRDS),$(BIN)/python -m tests.k8s.against_crds "$(CRDS)",echo "No CRDS=… given: the real definitions were not looked at")

lint: setup ## Style, types and layers; the JavaScript too
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.web.lint

docs: $(DOCS)/.ready ## Build the documentation into docs/_build; a link that leads nowhere is an error
	@$(DOCS)/bin/sphinx-build -E -W --keep-going -n -q -c docs/site . docs/_build
	@echo "the documentation is in docs/_build/index.html"

lock: setup ## Choose the newest versions anew and write requirements.lock
	@$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --extra dev \
	  pyproject.toml -o requirements.lock --no-emit-index-url --no-emit-find-links --no-header -q
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --extra postgres --extra otel pyproject.toml \
	  -c requirements.lock -o k8s/requirements.lock --no-emit-index-url --no-emit-find-links --no-header --no-annotate -q
	$(BIN)/python -m tests.interop.lock
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes docs/site/requirements.in \
	  -o docs/site/requirements.lock --no-emit-index-url --no-emit-find-links --no-header --no-annotate -q

clean: ## Remove .venv and caches; conversations in data/ stay
	rm -rf .venv .interop *.egg-info bench/out docs/_build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Compiled on purpose: where PYTHONDONTWRITEBYTECODE is set, Ray would start 3-5 times slower.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "mesh needs Python 3.11 or newer: install one and say which, as in: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "python3 has no venv: install it, on Debian and Ubuntu with: apt install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@echo "Installing the packages of requirements.lock: a minute or two, once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --compile --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --compile --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q mesh deployments
	@touch $@

# An environment of its own: what builds the documentation neither grows nor constrains what runs the mesh.
$(DOCS)/.ready: docs/site/requirements.lock
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r docs/site/requirements.lock
	@touch $@
