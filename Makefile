# Two commands do all set-up on a machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test test-onnx test-ray test-deploy check long kills bench bench-peers scale docs site pictures test-browser fuzz wheel clean

demo: $(VENV)/.demo
	$(BIN)/fedcodist demo

test: $(VENV)/.dev check
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long and not browser and not deploy and not ray"

check: $(VENV)/.dev
	$(BIN)/ruff format --check --diff . || (echo "run: ruff format ." && false)
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/python tools/make_docs.py --check
	$(BIN)/python tools/make_presets.py --check

# Real processes of Flower over TLS on loopback: a small federation first, then half an hour of images, offenders and kills.
# `make test-deploy PUBLISH=1` keeps the figures in docs/measured/deploy.json. Flower is no dependency of the other tests.
test-deploy: $(VENV)/.deploy
	FEDCODIST_PUBLISH=$(PUBLISH) $(BIN)/python -m pytest tests/test_deploy_live.py -m deploy -n 0 -s

# What takes minutes: the whole contract of parts with many programs, all pairs of rules, and the paper's Table 1 on embedded data.
long: $(VENV)/.dev
	$(BIN)/python -m pytest -m long

# The engine `ray` on a cluster of this machine, in a network namespace of its own; Ray is a large install, and not among the tools.
# `make test-ray PUBLISH=1` keeps the figures in docs/measured/ray.json.
test-ray: $(VENV)/.ray
	FEDCODIST_PUBLISH=$(PUBLISH) $(BIN)/python -m pytest -m ray -n 0 -s tests/test_ray.py

# What 1,000, 10,000 and 100,000 clients of a store take: peak memory and seconds, each in a process of its own.
# `make scale SCALE=--publish` keeps it in docs/measured, from where docs/scale.md has it.
scale: $(VENV)/.dev
	$(BIN)/python -m benches.scale $(SCALE)

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
	$(BIN)/python -m benches.rules $(BENCH)

docs: $(VENV)/.dev
	$(BIN)/python tools/make_presets.py
	$(BIN)/python tools/make_docs.py

# The documentation as a site in build/site, built offline; a dead link fails.
site: $(VENV)/.docs
	$(BIN)/python -m tools.make_site

# The pages of the site and the demo's report in Chromium: no message, no request, nothing wider than a phone.
test-browser: $(VENV)/.browser site
	$(BIN)/fedcodist demo --quiet
	$(BIN)/python -m pytest -m browser tests/browser

# README's picture of the report, from the demo's.
pictures: $(VENV)/.browser
	$(BIN)/fedcodist demo --quiet
	$(BIN)/python -m tools.browser runs/demo/report.html docs/pictures/report.png --width 1200 --height 900

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

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) --editable '.[browser]'
	$(BIN)/python -m tools.browser --install
	@touch $@

$(VENV)/.deploy: $(VENV)/.dev
	@echo "installing Flower into $(VENV) (once)"
	$(PIP) --editable '.[dev,deploy]'
	@touch $@

$(VENV)/.ray: $(VENV)/.dev
	@echo "installing Ray into $(VENV) (about 200 MB, once)"
	$(PIP) --editable '.[ray]'
	@touch $@
