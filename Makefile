# The commands of the project; each works in a fresh clone with Python 3.11 or later and make.
PYTHON ?= python3
CONFIG ?= configs/plans/llama3-70b-1024xh100.yaml
VENV ?= .venv
BIN := $(VENV)/bin
# Written when the installation is complete, so that it is done again only when its inputs changed.
INSTALLED := $(VENV)/.installed

.PHONY: plan test lint serve stop bench clean

plan: $(INSTALLED) ## plan CONFIG; the files go to runs/<name of the config>
	$(BIN)/python -m flows.plan $(CONFIG)

test: $(INSTALLED) lint ## everything that continuous integration checks
	$(BIN)/python -m pytest -n 2

lint: $(INSTALLED) ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

serve: $(INSTALLED) ## a Prefect server on http://127.0.0.1:4280 with a worker and the deployments
	$(BIN)/python -m flows.serving start

stop: ## end what serve started
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m flows.serving stop; fi

bench: $(INSTALLED) ## accuracy, search speed and balancing quality
	for script in accuracy search balance; do $(BIN)/python benchmarks/$$script.py || exit 1; done

clean: stop ## remove what was computed and installed
	rm -rf $(VENV) .paraplan runs build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $(INSTALLED)
