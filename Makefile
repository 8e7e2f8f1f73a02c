# From a fresh clone, with Python 3.11 to 3.13 and nothing else:  make quickstart   make test

PYTHON ?= python3
VENV ?= .venv
RUN ?= runs/quickstart
BIN := $(VENV)/bin
# Two OpenMP threads on two busy cores are many times slower than one; tests use processes instead.
export OMP_NUM_THREADS ?= 1

.PHONY: quickstart test lint format bench peers docs venv clean

quickstart: venv
	$(BIN)/overland quickstart --out $(RUN) $(ARGS)

test: venv
	$(BIN)/python -m pytest -n 2 $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each benchmark names its peer and says what it could not run.
bench: venv
	$(BIN)/python -m benchmarks.quickstart --quick $(ARGS)

# Tests against programs that need environments of their own: a two-node Ray cluster, mlcroissant, mlx-lm and mlx-vlm,
# llama.cpp, datatrove.
PEERS := $(HOME)/.cache/overland/peers
peers: venv $(PEERS)/ray/.installed $(PEERS)/mlx-vlm/.installed $(PEERS)/mlx/.installed $(PEERS)/llamacpp/.installed $(PEERS)/datatrove/.installed
	$(BIN)/python -m pytest tests/peers $(ARGS)

$(PEERS)/ray/.installed:
	@mkdir -p $(PEERS) && $(PYTHON) -m venv $(PEERS)/ray
	$(PEERS)/ray/bin/pip install --quiet --disable-pip-version-check 'ray[data]>=2.40' 'mlcroissant>=1.0' pydantic tokenizers \
	  license-expression zstandard fsspec resiliparse
	@touch $@

$(PEERS)/mlx-vlm/.installed:
	@mkdir -p $(PEERS) && $(PYTHON) -m venv $(PEERS)/mlx-vlm
	$(PEERS)/mlx-vlm/bin/pip install --quiet --disable-pip-version-check 'mlx[cpu]==0.32.4' transformers==5.24.0 pillow==13.0.0
	$(PEERS)/mlx-vlm/bin/pip install --quiet --disable-pip-version-check --no-deps mlx-vlm==0.7.10
	@touch $@

$(PEERS)/mlx/.installed:
	@mkdir -p $(PEERS) && $(PYTHON) -m venv $(PEERS)/mlx
	$(PEERS)/mlx/bin/pip install --quiet --disable-pip-version-check 'mlx[cpu]' 'mlx-lm>=0.32.2' safetensors
	@touch $@

$(PEERS)/llamacpp/.installed:
	@mkdir -p $(PEERS) && $(PYTHON) -m venv $(PEERS)/llamacpp
	$(PEERS)/llamacpp/bin/pip install --quiet --disable-pip-version-check 'xllamacpp>=2026.10'
	@touch $@

$(PEERS)/datatrove/.installed:
	@mkdir -p $(PEERS) && $(PYTHON) -m venv $(PEERS)/datatrove
	$(PEERS)/datatrove/bin/pip install --quiet --disable-pip-version-check 'datatrove>=0.9' pydantic pyarrow tokenizers \
	  license-expression zstandard fsspec resiliparse
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/python docs/generate_recipes.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@echo "the documentation is at build/site/index.html"

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  f"{sys.executable} is Python {v[0]}.{v[1]}; Overland needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo "Python cannot make a virtual environment: apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
