# Everything sets itself up: `make demo` and `make test` work on a fresh checkout.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Waiting threads that sleep instead of spinning: several times as fast where other programs want the same cores.
export OMP_WAIT_POLICY := passive

.PHONY: help setup demo test test-long lint docs clean

help:
	@echo "make setup   create .venv with the fdcnet command"
	@echo "make demo    learn class after class on generated photos, then write report.html (3 minutes)"
	@echo "make test    lint and all tests"
	@echo "make test-long   the tests that make test leaves out because they take minutes"
	@echo "make lint    ruff and mypy"
	@echo "make docs    build the documentation as a site in site/"

setup: .venv/setup.done
demo: setup
	$(BIN)/fdcnet demo
lint: .venv/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal
test-long: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal -m long
docs: .venv/docs.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open site/index.html"

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fdcnet needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip' || { echo "Python has no venv: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv .venv
.venv/setup.done: .venv/bin/pip pyproject.toml constraints.txt
	$(INSTALL) --editable '.[lite,web]'
	@touch $@
.venv/dev.done: .venv/setup.done
	$(INSTALL) --editable '.[lite,web,onnx,video,dev]'
	@touch $@
.venv/docs.done: .venv/setup.done
	$(INSTALL) --editable '.[docs]'
	@touch $@

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache
