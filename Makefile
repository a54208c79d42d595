# Two commands do all set-up on a machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test check kills bench docs fuzz wheel clean

demo: $(VENV)/.demo
	$(BIN)/fedcodist demo

test: $(VENV)/.dev check
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

check: $(VENV)/.dev
	$(BIN)/ruff format --check --diff . || (echo "run: ruff format ." && false)
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/python tools/make_docs.py --check
	$(BIN)/python tools/make_presets.py --check

# 50 random kill -9 of a small run, each resumed by the same command; prints how many ended byte-identical.
kills: $(VENV)/.dev
	$(BIN)/python tests/faults/kills.py --kills 50 --once

# Ours against a plain PyTorch loop of the same round, interleaved; torch lives in an environment of its own.
bench: $(VENV)/.dev benches/.venv/.torch
	$(BIN)/python benches/w1.py --torch benches/.venv/bin/python

docs: $(VENV)/.dev
	$(BIN)/python tools/make_presets.py
	$(BIN)/python tools/make_docs.py

# Every reader of files against mutated files, a minute each.
fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz/fuzz.py --seconds 60

wheel: $(VENV)/.dev
	$(BIN)/python -m build --no-isolation --outdir dist .

clean:
	rm -rf $(VENV) benches/.venv build dist .cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("fedcodist needs Python 3.11, 3.12 or 3.13") if not (3, 11) <= sys.version_info[:2] < (3, 14) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing fedcodist and JAX into $(VENV) (about 600 MB, once)"
	$(PIP) --editable '.[plots]'
	-@$(BIN)/python -m fedcodist.native build
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing fedcodist and its tools into $(VENV) (once)"
	$(PIP) --editable '.[dev]'
	-@$(BIN)/python -m fedcodist.native build
	@touch $@ $(VENV)/.demo

benches/.venv/.torch:
	$(PYTHON) -m venv benches/.venv
	benches/.venv/bin/python -m pip install --disable-pip-version-check --quiet numpy==2.4.6 torch==2.13.0
	@touch $@
