# Every target sets itself up: on a bare machine it needs python3 (3.11+), pip and make, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
export PYTHONDONTWRITEBYTECODE := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-peers chaos wheel lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20

demo: $(READY) ## real PostgreSQL, Valkey, two relays and a worker; kills some of them on stage
	@$(BIN)/outbox demo

test: $(READY) ## all tests against real servers (about 10 minutes)
	@$(BIN)/python -m pytest -m "not chaos"

check: $(READY) ## ruff, mypy --strict, import rules, public names, deploy files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/contract/test_architecture.py tests/contract/test_public_api.py tests/contract/test_deploy.py

bench: $(READY) ## speed, as ratios measured side by side (about 12 minutes); writes build/bench.json
	@$(BIN)/python -m benchmarks

bench-peers: $(READY) build/peers-venv/.ready ## the relay beside other libraries, in an environment of their own
	@$(BIN)/python -m benchmarks.peers

chaos: $(READY) ## the fault tests in their long form (about 30 minutes)
	@$(BIN)/python -m pytest -m chaos --durations=0

wheel: $(READY) ## build the wheel into build/dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir build/dist .

lock: ## resolve requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	    --no-emit-find-links --extra dev --extra embedded pyproject.toml -o requirements.lock

clean: ## remove the virtual environment and build output
	rm -rf $(VENV) build

# Debian's python3 has pip but no ensurepip, other Pythons the reverse: take what is there.
# After a change of entry points in pyproject.toml: make clean.
$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	 { echo "$(PYTHON) is missing or older than 3.11: make PYTHON=python3.12 ..."; exit 1; }
	@echo "setting up $(VENV) (once, about 15 s; needs the network)"
	@rm -rf $(VENV)
	@if $(PYTHON) -m pip --version >/dev/null 2>&1; \
	 then $(PYTHON) -m venv --without-pip $(VENV) && pip="$(PYTHON) -m pip --python $(BIN)/python"; \
	 else $(PYTHON) -m venv $(VENV) && pip="$(BIN)/python -m pip"; fi; \
	 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $$pip install -q --require-hashes -r requirements.lock && \
	 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $$pip install -q --no-deps --no-build-isolation -e .
	@touch $@

build/peers-venv/.ready: benchmarks/peers/requirements.txt
	@rm -rf build/peers-venv && mkdir -p build
	@if $(PYTHON) -m pip --version >/dev/null 2>&1; \
	 then $(PYTHON) -m venv --without-pip build/peers-venv && pip="$(PYTHON) -m pip --python build/peers-venv/bin/python"; \
	 else $(PYTHON) -m venv build/peers-venv && pip="build/peers-venv/bin/python -m pip"; fi; \
	 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $$pip install -q -r benchmarks/peers/requirements.txt
	@touch $@
