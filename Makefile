# Every target sets itself up. A fresh machine needs only Python 3.11 or newer.
#   make demo    adapt from printed to handwritten digits with three methods; prints a table, writes a report page
#   make test    install what the tests need, and run all tests
#   make check   ruff, mypy --strict, import-linter
#   make docs    build the site, build/site
#   make notebooks          execute the notebooks of the docs, and store their outputs
#   make lowest  run the quick tests with the lowest versions of the dependencies; needs uv, 7 GB of disk
#   make env     only create the environment, .venv
#   make test-deps      only install what the tests need:
#   make browser            Chromium and its driver, with apt
#   make label-studio       a Label Studio server, in its own environment (1 GiB)
#   make clusters           Ray and submitit (300 MiB)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: several test or demo processes share the cores.
export OMP_NUM_THREADS = 1
# Tests start many interpreters, which must not compile every module again.
unexport PYTHONDONTWRITEBYTECODE
# Three test processes for two cores: some tests wait for servers and killed processes.
TEST_PROCESSES = $$($(BIN)/python -c 'import os; print((3 * len(os.sched_getaffinity(0)) + 1) // 2)' 2>/dev/null || echo auto)
LABEL_STUDIO := 'label-studio>=1.23,<2'
# install VENV PACKAGES: with uv, which takes a sixth of pip's time; with pip where uv cannot be installed.
install = { $(1)/bin/python -m pip install --quiet --disable-pip-version-check uv \
	&& $(1)/bin/uv pip install --quiet --python $(1)/bin/python $(2); } \
	|| $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2)

.PHONY: demo test test-deps check env format clean docs notebooks lowest browser label-studio clusters

demo: env
	$(BIN)/ducats demo

test: test-deps
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder -q

# Tests of what cannot be installed here are skipped.
test-deps: env
	@log=$$(mktemp); $(MAKE) --no-print-directory -j3 -k browser label-studio clusters >"$$log" 2>&1 \
		|| { tail -n 20 "$$log"; echo "NOT ALL TEST DEPENDENCIES COULD BE INSTALLED: their tests are skipped" >&2; }

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet -d build/site
	@echo "open build/site/index.html"

notebooks: env
	$(BIN)/python docs/_hooks/notebooks.py

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "ducats needs Python 3.11 or newer: make PYTHON=python3.12 env"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m pip install virtualenv && $(PYTHON) -m virtualenv $(VENV); }
	$(call install,$(VENV),-c constraints.txt -e '.[dev]')
	@touch $@

# Not part of the gate.
lowest: env
	$(BIN)/python -m uv venv --quiet --clear --python 3.11 .lowest
	$(BIN)/python -m uv pip install --quiet --python .lowest --resolution lowest-direct -e '.[dev]'
	PATH="$(CURDIR)/.lowest/bin:$$PATH" .ci/quick

browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
		sudo=$$(command -v sudo || true); \
		$$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
			--no-install-recommends chromium chromium-driver fonts-dejavu-core; }

label-studio: .label-studio/.ready

.label-studio/.ready:
	$(PYTHON) -m venv .label-studio || { $(PYTHON) -m pip install virtualenv && $(PYTHON) -m virtualenv .label-studio; }
	$(call install,.label-studio,$(LABEL_STUDIO))
	LABEL_STUDIO_COLLECT_ANALYTICS=false LABEL_STUDIO_LATEST_VERSION_CHECK=false \
		.label-studio/bin/label-studio version --data-dir .label-studio/empty-database >/dev/null 2>&1  # migrations take a minute
	@touch $@

clusters: $(VENV)/.clusters

# Not as `.[ray,slurm]`: that would reinstall ducats while `make check` uses it.
$(VENV)/.clusters: $(VENV)/.ready
	$(BIN)/python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
		print(*extras["ray"], *extras["slurm"])' \
		| xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
	@touch $@

clean:
	rm -rf $(VENV) .lowest .label-studio build runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
