# Two commands do everything on a fresh machine: `make demo` and `make test`. Both install into .venv first.
PYTHON ?= python3
VENV ?= .venv
# More arguments for pip, for example an index with CPU builds of torch: PIP_ARGS="--extra-index-url https://..."
PIP_ARGS ?=
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check bench base-model docs clean

demo: $(INSTALLED)
	$(BIN)/steadyrl task check examples/search.toml
	$(BIN)/steadyrl train examples/search.toml
	@echo
	@run=$$(ls -d runs/*-ppo-search-s0* | tail -n 1); \
	echo "steadyrl sample $$run 'put an item into the queue without blocking'"; \
	$(BIN)/steadyrl sample $$run 'put an item into the queue without blocking'

# With the browser's parts, whose tests run where Chromium is installed. Of miniwob the pages are needed, no more.
test: $(INSTALLED)
	$(BIN)/pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[browse]'
	$(BIN)/pip install --quiet $(PIP_ARGS) -c constraints.txt --no-deps miniwob
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest

check: $(INSTALLED)
	$(BIN)/pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy steadyrl

bench: $(INSTALLED)
	$(BIN)/python bench/step_time.py
	$(BIN)/python bench/peers/environments.py $(PIP_ARGS)
	$(BIN)/python bench/side_by_side.py

base-model: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/base_model/train.py
	$(BIN)/python scripts/base_model/measure.py

docs: $(INSTALLED)
	$(BIN)/python scripts/generate_docs.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[torch,test,code]'
	@touch $(INSTALLED)

clean:
	rm -rf $(VENV) build dist
