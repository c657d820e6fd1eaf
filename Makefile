# Everything sets itself up: `make demo` and `make test` work on a fresh checkout.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Waiting threads that sleep instead of spinning: several times as fast where other programs want the same cores.
export OMP_WAIT_POLICY := passive

.PHONY: help setup demo test test-long soak bench test-oldest test-newest wheel-test lint docs results lock sbom audit clean

help:
	@echo "make setup   create .venv with the fdcnet command"
	@echo "make demo    learn class after class on generated photos, then write report.html (1 to 3 minutes)"
	@echo "make test    lint and all tests"
	@echo "make test-long   the tests that make test leaves out because they take minutes"
	@echo "make test-oldest, make test-newest   a slice of the tests with the lowest and newest dependencies but torch"
	@echo "make wheel-test   build the wheel, install it elsewhere, and use it as a new user would"
	@echo "make soak    try to break it: fuzzed inputs, flipped bits, links, kills (hours; ROW=name runs one row)"
	@echo "make lock    write requirements.lock: the pins of constraints.txt with hashes (needs a network)"
	@echo "make sbom    list all packages of .venv as CycloneDX in build/sbom.json"
	@echo "make audit   look up known vulnerabilities of the pinned packages (needs a network)"
	@echo "make bench   training speed and scale on a GPU, written to results/performance.json and results/scale.json"
	@echo "make lint    ruff and mypy"
	@echo "make docs    build the documentation as a site in site/"
	@echo "make results   write the tables and figures of results/, docs/results.md and README.md from the JSON files"

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
results: .venv/setup.done
	$(BIN)/python docs/results_pages.py
bench: .venv/dev.done
	$(BIN)/python benchmarks/training.py --json results/performance.json
	$(BIN)/python benchmarks/scale.py --json results/scale.json
	$(BIN)/python benchmarks/ceiling.py --json results/performance.json
	$(BIN)/python benchmarks/kernels.py
soak: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/soak --row "$(ROW)"

# What touches other packages most; the rest of the tests adds hours and no dependency.
SLICE := tests/test_registry.py tests/test_config.py tests/cli/test_cli.py tests/data/test_check.py tests/store/test_bundle.py \
	tests/inference/test_export.py tests/inference/test_localizer.py tests/web/test_api.py
# Older Pillow decodes photos a little differently, and these compare up to rounding.
EXACT := $(addprefix --deselect tests/inference/test_localizer.py::test_, \
	boxes_refer_to_the_photo_as_displayed several_photos_give_a_list)
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
test-oldest test-newest: test-%:
	rm -rf .venv-$* && $(PYTHON) -m venv .venv-$*
	$(PYTHON) .ci/requirements.py $* > .venv-$*/requirements.txt
	.venv-$*/bin/pip install --quiet --disable-pip-version-check '$(TORCH)' --requirement .venv-$*/requirements.txt
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	OMP_NUM_THREADS=1 .venv-$*/bin/pytest -n auto $(SLICE) $(EXACT)
wheel-test: .venv/release.done
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/e2e/use_wheel.py dist/*.whl

lock: .venv-supply/done
	@{ echo '# The pins of constraints.txt with the hashes of all their files: make lock. Without torch, whose builds differ by'; \
	   echo '# device (CPU, CUDA): install torch first, then: pip install --require-hashes --no-deps -r requirements.lock'; \
	   grep -v '^torch==' constraints.txt | .venv-supply/bin/uv pip compile - --quiet --no-deps --generate-hashes --no-header \
	     --no-annotate; } > .venv-supply/lock && mv .venv-supply/lock requirements.lock
sbom: .venv/dev.done .venv-supply/done
	@mkdir -p build
	.venv-supply/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.json .venv
audit: .venv-supply/done
	.venv-supply/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fdcnet needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip' || { echo "Python has no venv: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv .venv
.venv/setup.done: .venv/bin/pip pyproject.toml constraints.txt
	$(INSTALL) --editable '.[web]'
	@touch $@
.venv/dev.done: .venv/setup.done
	$(INSTALL) --editable '.[all,dev]'
	@touch $@

.venv/release.done: .venv/setup.done
	$(INSTALL) --editable '.[release]'
	@touch $@
.venv/docs.done: .venv/setup.done
	$(INSTALL) --editable '.[docs]'
	@touch $@
# Apart from .venv, so that these tools are not part of what they list.
.venv-supply/done:
	$(PYTHON) -m venv .venv-supply
	.venv-supply/bin/pip install --quiet --disable-pip-version-check uv==0.13.7 cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

clean:
	rm -rf .venv .venv-oldest .venv-newest .venv-supply build dist site .mypy_cache .ruff_cache .pytest_cache
