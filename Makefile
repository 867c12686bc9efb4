# Two commands do all: `make demo` trains the MLP, `make test` runs the whole test suite.
# Both make .venv at the first time and install nothing again until pyproject.toml changes.

PYTHON ?= python3
BIN := .venv/bin
KEY := $(shell cksum < pyproject.toml | cut -d' ' -f1)
DEMO := .venv/installed-demo-$(KEY)
EXAMPLES := .venv/installed-examples-$(KEY)
DOCS := .venv/installed-docs-$(KEY)
DEV := .venv/installed-dev-$(KEY)
CUDA12 := .venv-cuda12/installed-$(KEY)
N ?= 20000

.PHONY: help demo test kernels test-gpu test-paddle lint types examples docs fuzz bench clean

help:
	@echo "make demo      train the MLP on handwritten digits; report, plot and dumps go to out/"
	@echo "make test      the whole test suite"
	@echo "make kernels   every form of every CUDA kernel compiled for sm_80 and sm_90a, the ends of each for sm_89 and by"
	@echo "               CUDA 12's compiler; the long sweeps; and the wheel minigraph-kernels"
	@echo "make test-gpu  all that needs a CUDA GPU; PYTHON must have minigraph's cuda12 or cuda13 extra"
	@echo "make test-paddle  what is recorded from Paddle against Paddle; PYTHON must have the extras paddle and dev"
	@echo "make lint      ruff"
	@echo "make types     pyright"
	@echo "make examples  every script of examples/"
	@echo "make docs      the site of the documentation, to out/site; opens from disk"
	@echo "make fuzz      N=$(N) random programs, each with the passes off and on"
	@echo "make bench     the comparisons of bench/ that this machine can run"
	@echo "make clean     remove .venv, out/ and caches"
	@echo "PYTHON=python3.12 chooses the interpreter, Python 3.11 or newer is needed"

demo: $(DEMO)
	$(BIN)/python examples/train_mlp.py

# Two processes share the machine: one BLAS thread for each. Each begins with its half of the tests in their order, so
# what a test keeps serves the next. Bytecode is kept for the processes that tests start.
test: $(DEV)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

# NVRTC needs no GPU. What was compiled once is kept in ~/.cache/minigraph. Sweeps are those of which `make test` runs
# a part. CUDA 12 has an environment of its own.
kernels: $(DEV) $(CUDA12)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -m "kernels or sweep"
	OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= .venv-cuda12/bin/python -m pytest -n 2 --dist worksteal -m "" \
	    -k kernels_compile_without_spills tests/kernels/test_cuda_compile.py tests/kernels/test_attention_hopper.py
	$(BIN)/python -m bench.shipped_kernels

# The second line runs every kernel once under compute-sanitizer's four tools.
test-gpu:
	PYTHONPATH=.:$$PYTHONPATH $(PYTHON) -m tests.gpu.suite
	PYTHONPATH=.:$$PYTHONPATH $(PYTHON) -m tests.gpu.suite --sanitize

# What is compared with was recorded by `python -m tests.paddle.record`.
test-paddle:
	$(PYTHON) -m pytest tests/paddle tests/paddle_names

lint: $(DEV)
	$(BIN)/ruff check .

types: $(DEV)
	$(BIN)/pyright

examples: $(EXAMPLES)
	@set -e; for script in examples/*.py; do echo "$$script"; $(BIN)/python $$script; done

# A link that leads nowhere, or a page that docs/README.md does not name, is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "open out/site/index.html"

fuzz: $(DEV)
	$(BIN)/python -m tests.fuzz $(N)

bench: $(EXAMPLES)
	$(BIN)/python -m bench all

clean:
	rm -rf .venv .venv-cuda12 out build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find minigraph tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "minigraph needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	    echo "Install one and say which: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	    echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(DEMO): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	@touch $@

$(EXAMPLES): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[examples]'
	@touch $@ $(DEMO)

$(DOCS): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

$(DEV): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(EXAMPLES) $(DEMO) $(DOCS)

$(CUDA12): | $(BIN)/python
	$(BIN)/python -m venv .venv-cuda12
	.venv-cuda12/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev-cuda12]'
	@touch $@
