# `make demo` and `make test` do all set-up on a fresh Debian 12 machine; everything else assumes it is done.
PYTHON ?= python3
VENV := $(CURDIR)/.venv
PY := $(VENV)/bin/python
PRESET ?= release
BUILD := build/$(PRESET)
JOBS ?= $(shell nproc)
TORCH := $(shell sed -n 's/^torch = \["\([^"]*\)".*/\1/p' pyproject.toml)
STAMP := .setup

APT := g++ cmake ninja-build ccache lld-22 llvm-22-dev libzstd-dev zlib1g-dev libgtest-dev libxxhash-dev git python3-venv python3-dev
PIP := numpy "pybind11>=2.13,<4" "scikit-build-core>=1.1" "rich>=13" xxhash "pytest>=8" "pytest-xdist>=3" "hypothesis>=6" expecttest "einops>=0.8,<1" "transformers>=5,<6" matplotlib \
       "nvidia-cuda-nvrtc>=13,<14" "ruff>=0.6" "mypy>=1.11" "pyright>=1.1.400" "clang-format==22.1.0"

# For `make bench-models`. torchvision names one release of torch, for which pip would bring the CUDA build over the CPU's.
VISION := $(shell sed -n 's/^torch = \["2\.\([0-9]*\).*/\1/p' pyproject.toml | awk '{ print $$1 + 15 }')
PIP_MODELS := "timm>=1.0.20,<1.1" "torchvision==0.$(VISION).*"

DIGITS := "scikit-learn>=1.5,<2"

.PHONY: test-matrix fuzz fuzz-scripts fuzz-loops fuzz-training fuzz-masks opinfo-full opinfo-gradients test-levels exhaustive-math soak setup build demo test test-cpp test-python test-observer test-no-observer test-cuda-full lint asan tsan bench bench-quick bench-models bench-seeds bench-training bench-gpu seeds-peers bench-report correctness-report coverage-report docs clean

setup: $(STAMP)/system $(STAMP)/venv

$(STAMP)/system:
	@mkdir -p $(STAMP)
	@if ! dpkg -s $(APT) >/dev/null 2>&1; then \
	  if [ "$$(id -u)" != 0 ]; then echo "fastjit: these Debian packages are missing; install them as root: apt-get install $(APT)"; exit 1; fi; \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(APT); fi
	@touch $@

# The CPU build of torch: a bare `torch` would bring gigabytes of CUDA.
$(STAMP)/venv: Makefile pyproject.toml | $(STAMP)/system
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c "import torch; assert torch.__version__.split('+')[0] == '$(TORCH)'" 2>/dev/null || \
	  $(PY) -m pip install -q "torch==$(TORCH)+cpu" || \
	  $(PY) -m pip install -q "torch==$(TORCH)+cpu" --extra-index-url https://download.pytorch.org/whl/cpu
	@$(PY) -m pip install -q $(PIP)
	@$(PY) -m pip install -q --no-deps $(PIP_MODELS)
	@echo $(CURDIR)/python > $$($(PY) -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")/fastjit.pth
	@$(PY) cmake/egg_info.py
	@printf '#!/bin/sh\nexec %s -m fastjit "$$@"\n' $(PY) > $(VENV)/bin/fastjit && chmod +x $(VENV)/bin/fastjit
	@touch $@

build: setup
	@cmake --preset $(PRESET) -DPython_EXECUTABLE=$(PY) -Dpybind11_DIR=$$($(PY) -m pybind11 --cmakedir) > $(STAMP)/configure.log || (cat $(STAMP)/configure.log; exit 1)
	@cmake --build $(BUILD) -j $(JOBS)

demo: build
	@$(PY) benchmarks/demo.py

test: build test-cpp test-python lint

test-cpp:
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) --no-tests=error

test-python:
	@FASTJIT_CACHE_DIR=$$(mktemp -d) $(PY) -m pytest -n $(JOBS) --dist loadfile

# The read observer, which needs no torch, under another Python: `make test-observer PY=3.12` or PY=/path/to/python.
# `make test` does this for each version that pyenv has or that is on the PATH, and says which were missing.
test-observer:
	@$(MAKE) --no-print-directory setup PY=$(VENV)/bin/python
	@FASTJIT_CACHE_DIR=$$(mktemp -d) FASTJIT_OBSERVER_PYTHON=$(if $(filter $(PY),$(VENV)/bin/python),,$(PY)) \
	  $(VENV)/bin/python -m pytest $(patsubst %,tests/python/observe/test_%.py,observer observer_dicts observer_versions)

# FastJIT as a Python that the observer does not know would have it: built without the observer, in a folder of its own.
test-no-observer: setup
	@cmake -S . -B build/no-observer -G Ninja -DCMAKE_BUILD_TYPE=Release -DFASTJIT_TESTS=OFF -DFASTJIT_OBSERVER=OFF \
	  -DPython_EXECUTABLE=$(PY) -Dpybind11_DIR=$$($(PY) -m pybind11 --cmakedir) > $(STAMP)/no-observer.log
	@cmake --build build/no-observer -j $(JOBS)
	@cmake --install build/no-observer --prefix build/no-observer/site > /dev/null
	@cp python/fastjit/[!_]*.py python/fastjit/_[!b]*.py python/fastjit/py.typed build/no-observer/site/fastjit/
	@FASTJIT_CACHE_DIR=$$(mktemp -d) PYTHONPATH=build/no-observer/site $(PY) -m pytest tests/python/tools/test_python_builds.py

# Everything for several pairs of Python and torch, each as a wheel in an environment of its own below build/matrix:
# some 20 minutes and 6 GB each. CELLS names others (docs/install.md shows how); SAVE=1 keeps the rows for docs/install.md.
CELLS ?=
test-matrix: $(STAMP)/system
	@$(PYTHON) tests/matrix.py $(CELLS) $(if $(SAVE),--save)

# Every op, dtype and layout as CUDA source, each compiled for every architecture and run on the host against eager.
test-cuda-full:
	@FASTJIT_CUDA_FULL=1 FASTJIT_CACHE_DIR=$$(mktemp -d) $(PY) -m pytest tests/python/engine/test_cuda.py

# Random programs against eager: those of today, or FUZZ=first:last; SAVE=1 adds them to the count in docs/correctness.md.
FUZZ ?=
fuzz: build
	@$(PY) benchmarks/fuzz.py $(FUZZ) $(if $(SAVE),--save)

# Random scripts of calls and changes of state; SCRIPTS=first:last chooses them, FASTJIT_CHECK=record records each hit again.
SCRIPTS ?= 0:5000
fuzz-scripts: build
	@FASTJIT_CACHE_DIR=$$(mktemp -d) FASTJIT_SCRIPTS=$(SCRIPTS) $(PY) -m pytest -q tests/python/dispatch/test_random_scripts.py

# Random loops over time, as Python and as graphs; LOOPS=first:last chooses them.
LOOPS ?= 0:5000
fuzz-loops: build
	@FASTJIT_CACHE_DIR=$$(mktemp -d) RANDOM_LOOPS=$(LOOPS) $(PY) -m pytest -q -s tests/python/engine/test_random_loops.py
	@REROLL_GRAPHS=$(LOOPS) build/release/fj_tests --gtest_filter='Reroll.AgreesWithTheGraph*'

# Random programs forward and back; GRADIENTS=first:last chooses the programs.
GRADIENTS ?= 0:1000
fuzz-training: build
	@FASTJIT_CACHE_DIR=$$(mktemp -d) RANDOM_GRADIENTS=$(GRADIENTS) $(PY) -m pytest -q -s tests/python/dispatch/test_random_gradients.py

# Random work on what masks pick; MASKS=first:last chooses the programs.
MASKS ?= 0:2000
fuzz-masks: build
	@FASTJIT_CACHE_DIR=$$(mktemp -d) RANDOM_MASKS=$(MASKS) $(PY) -m pytest -q -s tests/python/dispatch/test_random_masks.py

# Every sample of torch's operator database in every element type and layout, and every target: tens of minutes.
opinfo-full: build
	@FASTJIT_OPINFO_FULL=1 FASTJIT_CACHE_DIR=$$(mktemp -d) $(PY) -m pytest $(patsubst %,tests/python/%.py,capture/test_opinfo capture/test_opinfo_forms dispatch/test_targets)

# The first SAMPLES samples of each entry of torch's operator database that has gradients, forward and back: some minutes.
SAMPLES ?= 6
opinfo-gradients: build
	@OPINFO_GRADIENTS=$(SAMPLES) FASTJIT_CACHE_DIR=$$(mktemp -d) $(PY) -m pytest -q -s tests/python/capture/test_opinfo_gradients.py

# Every numeric test at each level of torch's kernels, MKL, oneDNN and our compiler that this CPU has: tens of minutes.
test-levels: build
	@FASTJIT_LEVELS_FULL=1 FASTJIT_CACHE_DIR=$$(mktemp -d) $(PY) -m pytest tests/python/engine/test_levels.py

# Every elementary function over all 2^32 floats, on both ISA levels: hours. MATH="--step 4097" or a function's name shortens it.
MATH ?=
exhaustive-math: setup
	@cmake --build $(BUILD) --target fj_math_errors -j $(JOBS)
	@$(BUILD)/fj_math_errors $(MATH)

lint:
	@$(PY) -m ruff check python tests benchmarks docs cmake
	@$(PY) -m mypy
	@git ls-files '*.cpp' '*.h' | xargs $(VENV)/bin/clang-format --dry-run -Werror

# The engine under AddressSanitizer and UndefinedBehaviorSanitizer.
asan: setup
	@cmake --preset asan > /dev/null && cmake --build build/asan -j $(JOBS)
	@ctest --test-dir build/asan --output-on-failure -j $(JOBS)

# The same under ThreadSanitizer.
tsan: setup
	@cmake --preset tsan > /dev/null && cmake --build build/tsan -j $(JOBS)
	@ctest --test-dir build/tsan --output-on-failure -j $(JOBS)

# 100,000 functions compiled and dropped: memory and mappings stay where they are after the first 10,000.
soak: build
	@FASTJIT_CACHE_DIR=$$(mktemp -d) $(PY) tests/soak/soak.py --warmup 10000 --cycles 90000

bench: build
	@$(PY) benchmarks/run_all.py

bench-quick: build
	@$(PY) benchmarks/run_all.py --quick

# 20 models of timm, torchvision and transformers, each in processes of its own: MODELS="--only vit_tiny,gpt2 --peers none"
# chooses and shortens. KEPT holds what is measured so far, and a run that was cut off goes on from there.
MODELS ?=
KEPT ?= build/bench-models.json
bench-models: build
	@$(PY) benchmarks/models.py --keep $(KEPT) $(MODELS)
	@rm -f $(KEPT)
	@$(PY) benchmarks/report.py

# Training: times, then memory and errors, then what scikit-learn's digits are learned to.
bench-training: build
	@$(PY) benchmarks/training.py
	@$(PY) benchmarks/training_quality.py
	@$(PY) -c "import sklearn" 2>/dev/null || $(PY) -m pip install -q $(DIGITS)
	@$(PY) benchmarks/digits.py
	@$(PY) benchmarks/report.py

# Needs a CUDA device; PY is then a Python whose torch has CUDA, and FastJIT is built for that one.
bench-gpu: build
	@$(PY) benchmarks/gpu.py
	@$(PY) benchmarks/report.py

# The programs of the works that FastJIT began with, a folder of benchmarks/seeds each, tens of minutes: the first calls
# of torch.compile. SEEDS="functs --only LSTM --budget 2" chooses and shortens; `make seeds-peers` brings Numba and JAX.
SEEDS ?=
bench-seeds: build
	@$(PY) benchmarks/seeds/run.py $(SEEDS)
	@$(PY) benchmarks/report.py

seeds-peers: setup
	@$(PY) -m pip install -q --target build/seeds-peers --no-deps "numba>=0.68,<0.69" "llvmlite>=0.50,<0.51" "jax>=0.10,<0.11" \
	  "jaxlib>=0.10,<0.11" ml_dtypes opt_einsum scipy

# Scripts, op_db, models, and the scripts under torch.compile and torch.jit.trace against eager: about half an hour;
# PARTS=scripts,models takes only these anew.
PARTS ?= scripts,opinfo,models,peers
correctness-report: build
	@$(PY) benchmarks/correctness.py --parts $(PARTS)
	@$(PY) benchmarks/report.py

# Functions and models of public packages against eager, without and with gradients: some twenty minutes, and 2 GB in
# build/coverage for the packages of the extra of that name. COVERAGE="--package kornia,timm" or "--only bert,sobel" plays
# these alone; --list names all.
COVERAGE ?=
COVERAGE_PY := build/coverage/bin/python
COVERAGE_PINS := $(PY) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['coverage'])"
coverage-report: build build/coverage/.complete
	@PYTHONPATH=python $(COVERAGE_PY) benchmarks/coverage.py $(COVERAGE)
	@PYTHONPATH=python $(COVERAGE_PY) benchmarks/coverage.py --gradients $(COVERAGE)
	@$(PY) benchmarks/report.py

build/coverage/.complete: pyproject.toml | $(STAMP)/venv
	@test -x $(COVERAGE_PY) || $(PYTHON) -m venv build/coverage
	@$(COVERAGE_PY) -m pip install -q "torch==$(TORCH)+cpu" || \
	  $(COVERAGE_PY) -m pip install -q "torch==$(TORCH)+cpu" --extra-index-url https://download.pytorch.org/whl/cpu
	@echo "torch==$(TORCH)+cpu" > build/coverage/torch.txt
	@$(COVERAGE_PINS) | xargs $(COVERAGE_PY) -m pip install -q -c build/coverage/torch.txt rich xxhash
	@touch $@

# Writes the measured tables into README.md and docs/ from benchmarks/results/*.json.
bench-report: setup
	@$(PY) benchmarks/report.py

# Writes the pages that come from the code.
docs: build
	@$(PY) docs/generate.py
	@$(PY) -m fastjit._opsdoc docs/ops.md

clean:
	@rm -rf build python/fastjit/*.so python/fastjit/_build_info.py
