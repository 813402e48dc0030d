# Everything sets itself up: a fresh machine needs Python 3.11 or newer, nothing else.
#   make demo    adapt printed to handwritten digits with five methods; table and page
#   make test    all tests
#   make check   ruff, mypy --strict, import-linter
#   make env     only the environment, .venv

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread a process: several test or demo processes would fight over the cores.
export OMP_NUM_THREADS = 1

.PHONY: demo test check env format clean

demo: env
	$(BIN)/ducats demo

test: env
	$(BIN)/python -m pytest -n auto --dist loadscope -q

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "ducats needs Python 3.11 or newer: make PYTHON=python3.12 env"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m pip install virtualenv && $(PYTHON) -m virtualenv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
