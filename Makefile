# Every target builds what it needs: a virtual environment in .venv, from the pins in constraints.txt.
#   make demo                     the demonstration: JALA-EM against PGD and SOUL
#   make test                     lint, then the tests and docstring examples (all but the slow ones)
#   make test-share               a fifth of the slow tests, chosen by the commit or by SHARE=0..4
#   make test-all                 lint, then all tests, the slow ones too
#   make bench                    the benchmarks, about 20 minutes on an idle machine
#   make book                     the problem book, beside R's packages where they are installed (an hour)
#   make docs                     the documentation site, docs/_build/html; runs every example
#   make test-browser             that site, the HTML report and a notebook in headless Chromium
#   make calibrate                coverage of the error bars, 200 data sets of 12 models (an hour)
#   make mutants                  classic mistakes planted one at a time: every one must be caught
#   make kill                     kill -9 at random moments of checkpointed fits
#   make soak precision           a million steps and eight fits at once; float32 against float64
#   make PYTHON=python3.12 test   the same with another interpreter (remove .venv first)

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

BIN := $(VENV)/bin
PINS := pyproject.toml constraints.txt

# The tests are mostly compilation. What one of them has compiled, all the others find in a folder;
# and `make test` compiles at level 0, jalax's own programs too (tests/conftest.py): a fifth of the
# time. The slow tests, `make test-all` and a test in tests/_runtime/test_compiler.py have the levels
# that users have. BLAS has one thread: two would spin while they wait, and slow the other process.
SHARED := OPENBLAS_NUM_THREADS=1 JALAX_PROGRAMS=$(CURDIR)/.pytest_cache/programs
LEVEL_0 := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
TESTING := $(SHARED) JALAX_COMPILE_LEVEL=0 XLA_FLAGS="$(LEVEL_0)"
TESTING_ALL := $(SHARED) XLA_FLAGS=--xla_backend_optimization_level=2
# Eight devices on one CPU, for the tests of many devices (which the first run leaves out).
EIGHT := --xla_force_host_platform_device_count=8
TESTING_8 := $(SHARED) JALAX_COMPILE_LEVEL=0 XLA_FLAGS="$(EIGHT) $(LEVEL_0)"
TESTING_8_ALL := $(SHARED) XLA_FLAGS="$(EIGHT) --xla_backend_optimization_level=0"
MANY := .pytest_cache/many-devices.log
TYPES := .pytest_cache/mypy.log
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore
# Where it is set, each of the hundred processes that the tests start compiles all of JAX's Python.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-share test-all test-browser style lint format docs bench book clean
.PHONY: calibrate mutants kill soak precision

demo: $(VENV)/.installed
	$(BIN)/jalax demo

# All at once: the tests of many devices wait for processes that were killed or told to stop. What
# they and mypy say is shown at the end.
test: style
	@mkdir -p $(dir $(MANY)); set -x; \
	$(TESTING_8) $(PYTEST) tests/multidevice -m "not slow" > $(MANY) 2>&1 & many=$$!; \
	$(BIN)/mypy > $(TYPES) 2>&1 & types=$$!; \
	$(TESTING) $(PYTEST) -m "not slow and not browser"; here=$$?; \
	wait $$many; there=$$?; wait $$types; typed=$$?; \
	cat $(MANY) $(TYPES); exit $$((here | there | typed))

test-all: lint
	$(TESTING_ALL) $(PYTEST) -m "not browser"
	$(TESTING_8_ALL) $(PYTEST) tests/multidevice

# With the flags of test-all. A fifth of the tests of many devices may be none at all, which pytest
# says by 5; that these tests are found is seen by `make test`.
test-share: $(VENV)/.installed-test
	@share=$$($(BIN)/python tests/tiers.py) || exit 1; set -x; \
	$(TESTING_ALL) $(PYTEST) -m "slow and not browser" --slow-share=$$share && \
	{ $(TESTING_8_ALL) $(PYTEST) tests/multidevice -m slow --slow-share=$$share || [ $$? -eq 5 ]; }

# Needs Debian's chromium (apt-get install chromium).
test-browser: docs
	$(BIN)/python -m pytest -m browser

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A warning is an error. What was executed is kept until the library or the example changes. One
# page at a time: writing in parallel, Sphinx takes a page that failed for a written one.
docs: $(VENV)/.installed-docs
	rm -rf docs/_build/html/_modules  # Sphinx writes these again only if the source is newer
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: $(VENV)/.installed-test
	$(BIN)/python benchmarks/run.py

book: $(VENV)/.installed-test
	$(BIN)/python benchmarks/book.py --peers

# Each writes its result beside itself: reliability/*.md and *.json, see docs/reliability.md.
calibrate: $(VENV)/.installed-test
	$(BIN)/python reliability/calibrate.py --jobs $(JOBS)

mutants: $(VENV)/.installed-test
	$(BIN)/python reliability/mutants.py --jobs $(JOBS)

kill soak precision: $(VENV)/.installed-test
	$(BIN)/python reliability/$@.py

clean:
	rm -rf build dist docs/_build docs/repository .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# A half-made environment is removed, so that the next call does not take it for a whole one.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "jalax needs Python 3.11 or later, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@# Python 3.11 brings a pip that needs twice as long as today's to find what to install.
	$(BIN)/python -m pip install -q --upgrade pip || true

$(VENV)/.installed: $(PINS) | $(BIN)/python
	@echo "installing jalax into $(VENV) (a minute the first time)"
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(PINS) | $(BIN)/python
	@echo "installing jalax[test] into $(VENV) (a few minutes the first time)"
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e ".[test]"
	@touch $@

$(VENV)/.installed-docs: $(PINS) | $(BIN)/python
	@echo "installing jalax[docs] into $(VENV) (a few minutes the first time)"
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e ".[docs]"
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-dev: $(PINS) | $(BIN)/python
	@echo "installing jalax[dev] into $(VENV) (a few minutes the first time)"
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test
