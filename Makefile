# `make train`, `make sweep` and `make test` need Python 3.11 or later only. Each sets up $(VENV) when it is missing or out of date.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
GPU_VENV ?= .venv-gpu
# Processes that run the tests.
TEST_JOBS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal
# Folders or files of tests to run. The default is all.
TESTS ?=
# The extras to install, with those that JAX needs for the GPU of this host, if there is one.
EXTRAS ?= $(shell $(PYTHON) gmmae/system/nvidia.py test)

.PHONY: train sweep test test-all test-gpu-programs test-cluster test-install test-faults bench gpu-report docs notebooks lint format

train: $(VENV)/ready
	$(BIN)/python train.py --workdir runs/quickstart

sweep: $(VENV)/ready
	$(BIN)/python sweep.py --config sweep_quick --workdir runs/sweep_quick

# On the other line of JAX: `make test PYTHON=python3.12 VENV=.venv-3.12`.
test: $(VENV)/ready
	$(PYTEST) -m "not slow" $(TESTS)

# The tests of `make test`, and then the slow ones.
test-all: test
	$(PYTEST) -m slow $(TESTS)

# Tests of XLA's programs for absent GPUs. They have an environment of their own, with JAX's CUDA plugin.
# On the other line of JAX: `make test-gpu-programs PYTHON=python3.12 GPU_VENV=.venv-gpu-3.12`.
test-gpu-programs:
	$(MAKE) VENV=$(GPU_VENV) EXTRAS=gpu-programs,test $(GPU_VENV)/ready
	GMMAE_TEST_GPU_PROGRAMS=1 $(GPU_VENV)/bin/python -m pytest -n $(TEST_JOBS) tests/gpu_programs

# Installs Slurm, Open MPI and ssh from Debian where they are missing.
test-cluster: $(VENV)/ready
	tests/cluster/install.sh
	GMMAE_TEST_CLUSTER=1 $(BIN)/python -m pytest tests/cluster

# Types the README's first block in a clone of the last commit. It installs an environment of its own.
test-install: $(VENV)/ready
	GMMAE_TEST_INSTALL=1 $(BIN)/python -m pytest tests/documents/test_first_screen.py

# Faults (kills, stops, hangs, full disks, damaged checkpoints) of runs and sweeps, with a row of a table for each.
test-faults: $(VENV)/ready
	GMMAE_TEST_FAULTS=1 $(BIN)/python -m pytest tests/faults -q -s

# Compares with PyTorch, which it installs. `make bench BENCH="--parts peers --turns 3"` runs a part.
bench: $(VENV)/bench
	$(BIN)/python -m benchmarks $(BENCH)

# The first command on a new GPU. It writes runs/gpu_report.md, to send back. `make gpu-report REPORT="--sections environment"` runs a part.
gpu-report: $(VENV)/bench
	$(BIN)/python -m benchmarks.gpu_report $(REPORT)

# The site, in docs/_build/html. A warning is an error. Notebooks show the outputs that they were committed with.
docs: $(VENV)/docs
	$(BIN)/sphinx-build -q -W --keep-going -j auto -c docs . docs/_build/html

# Runs the notebooks on two cores, and writes their outputs into them: `make notebooks NOTEBOOKS=docs/notebooks/quickstart.ipynb`.
notebooks: $(VENV)/docs
	$(BIN)/python -m docs.execute $(NOTEBOOKS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

$(VENV)/bench: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

$(VENV)/docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@
