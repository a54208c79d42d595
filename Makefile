# Two commands do all set-up on a machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test test-onnx check long kills bench bench-peers docs fuzz wheel clean

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

# What takes minutes: the paper's Table 1 on embedded data at the smoke budget.
long: $(VENV)/.dev
	$(BIN)/python -m pytest -m long

# Models as ONNX: the converter and its runtime bring 100 MB, so they are no part of `make test`.
test-onnx: $(VENV)/.dev
	$(PIP) --editable '.[onnx]'
	$(BIN)/python -m pytest tests/test_trained.py -k onnx

# 50 random kill -9 of a small run, each resumed by the same command; prints how many ended byte-identical.
kills: $(VENV)/.dev
	$(BIN)/python tests/faults/kills.py --kills 50 --once

# Ours against plain PyTorch, interleaved, to runs/benches; torch lives in an environment of its own (benches/.peers).
# `make bench BENCH=--publish` writes to benches/results and benches/history.jsonl, which the documentation quotes.
bench: $(VENV)/.dev
	$(BIN)/python -m benches.bench $(BENCH)

# The same against FedJAX, Flower on Ray, pfl-research, FedLab and TFF, each in its own environment (gigabytes, and about two hours).
bench-peers: $(VENV)/.dev
	$(BIN)/python -m benches.bench --peers $(BENCH)
	$(BIN)/python -m benches.bench --peers --portable $(BENCH)
	$(BIN)/python -m benches.bench --peers --cohorts $(BENCH)
	$(BIN)/python -m benches.bench --scaling $(BENCH)
	$(BIN)/python -m benches.bench --overhead $(BENCH)
	$(BIN)/python -m benches.bench --profile $(BENCH)

docs: $(VENV)/.dev
	$(BIN)/python tools/make_presets.py
	$(BIN)/python tools/make_docs.py

# Every reader of files against mutated files, a minute each.
fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz/fuzz.py --seconds 60

wheel: $(VENV)/.dev
	$(BIN)/python -m build --no-isolation --outdir dist .

clean:
	rm -rf $(VENV) benches/.peers build dist .cache .pytest_cache .ruff_cache .hypothesis

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
