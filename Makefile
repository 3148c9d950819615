# Everything runs in .venv, which is made on first use from the python3 on PATH, with the versions of
# constraints.txt. CONSTRAINTS= installs the newest versions, into .venv-newest.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV ?= $(if $(CONSTRAINTS),.venv,.venv-newest)
BIN := $(VENV)/bin
PY := $(BIN)/python
ARGS ?=
# Development mode without its checks of memory, which find faults in C: "make nightly" has them. Each
# process that a test starts would compile the package again if no bytecode were written.
PYTEST := PYTHONDEVMODE=1 PYTHONMALLOC=default PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
# A worker that crashes fails its test once; it would be tried again otherwise.
PARALLEL := -n 2 --dist loadfile --max-worker-restart 0
INSTALL := -m pip install --quiet --disable-pip-version-check
CONSTRAINED := $(INSTALL) $(CONSTRAINTS:%=--constraint %)

.DEFAULT_GOAL := help
.PHONY: help demo test workers layouts browser services simulate model chaos nightly bench docs lint messages constraints dist build check-dist

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp per dependency group, renewed when pyproject.toml or the constraints change.
$(VENV)/.venv:
	$(PYTHON) -c 'import sys; sys.exit("django-redis-lock needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(PY) $(CONSTRAINED) --upgrade 'pip>=25.3'
	@touch $@
$(VENV)/.%: pyproject.toml $(CONSTRAINTS) | $(VENV)/.venv
	@echo 'Installing into $(VENV), which takes 1 to 4 minutes the first time ...'
	$(PY) $(CONSTRAINED) $(CONSTRAINTS:%=--build-constraint %) --editable '.[celery]' --group $*
	@touch $@

demo: $(VENV)/.demo  ## the flash sale, duplicate tasks and tasks over a limit, live (ARGS=--once: check the figures and exit)
	$(PY) -m example_project.demo $(ARGS)

test: $(VENV)/.test  ## the tests, on an embedded Valkey server
	$(PYTEST) $(PARALLEL) $(ARGS)

workers: $(VENV)/.test  ## processes that die or hang: workers, beats, programs
	$(PYTEST) $(PARALLEL) tests/workers $(ARGS)

layouts: $(VENV)/.test  ## the contract on a cluster and a quorum, and server layouts that fail (needs apt-get install redis-server)
	$(PYTEST) $(PARALLEL) -m 'not nightly' tests/layouts $(ARGS)

browser: $(VENV)/.browser  ## the admin page in a real browser (needs apt-get install chromium)
	$(PYTEST) tests/browser $(ARGS)

services: $(VENV)/.services  ## PostgreSQL, RabbitMQ, Prometheus (needs apt-get install postgresql rabbitmq-server prometheus)
	$(PYTEST) tests/databases tests/observability $(ARGS)
	$(PYTEST) tests/brokers --ds=tests.brokers.settings $(ARGS)

simulate: $(VENV)/.test  ## the protocol on a virtual clock, in random schedules (ARGS="--schedules 1000000 --seed 7")
	$(PY) -m tests.simulation $(ARGS)

model: $(VENV)/.test  ## all orders of events in models of the protocol (needs apt-get install spin gcc)
	$(PY) -m tests.model $(ARGS)

chaos: $(VENV)/.test  ## break real processes and servers, and check what happened (ARGS="--layout queue --seconds 600")
	$(PY) -m tests.chaos $(ARGS)

nightly: $(VENV)/.nightly  ## what takes too long for each change: chaos, all versions and servers, tests of others, coverage, long simulation, bench
	$(PY) -m tests.simulation --schedules 60000 --seed $$(date +%y%m%d) --orders 4000  # different ones each night
	$(PY) -m tests.simulation --mutants 20000
	$(PY) -m tests.model --nightly
	$(PY) -m tests.chaos
	$(PY) -m tests.chaos.broken
	$(PY) -m tests.chaos.parked
	$(PY) -m coverage erase
	PYTHONMALLOC=debug $(PY) -m coverage run -m pytest -m 'not timed' $(PARALLEL)
	PYTHONMALLOC=debug $(PY) -m coverage run -m pytest -m 'not timed' $(PARALLEL) tests/workers tests/layouts
	$(PY) -m coverage combine --quiet && $(PY) -m coverage report
	$(PY) -m nox
	$(MAKE) bench
	$(MAKE) bench ARGS="--only stopped --only layouts --output build/long"

# In an environment of its own, which has hiredis.
bench:  ## measure against the peers (ARGS=--quick)
	$(MAKE) --no-print-directory .venv-bench/.bench VENV=.venv-bench
	.venv-bench/bin/python -m benchmarks $(ARGS)

docs: $(VENV)/.docs $(VENV)/.test  ## build the documentation (warnings are errors), count its words, and run its tutorial and its Python
	$(PY) tests/project/words.py
	$(BIN)/sphinx-build --nitpicky --fail-on-warning --fresh-env --quiet docs docs/_build/html
	$(PYTEST) $(PARALLEL) tests/tutorial $(ARGS)

lint: $(VENV)/.lint  ## ruff, mypy, pyright, import-linter, words of texts and pages, and the schemas of YAML files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/typed_usage.ini tests/typed_usage.py tests/typed_tasks.py
	$(BIN)/basedpyright --pythonpath $(PY)
	$(PY) tests/project/words.py
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml

messages: $(VENV)/.test  ## collect and compile the texts to translate (needs apt-get install gettext)
	cd django_redis_lock && $(abspath $(BIN))/django-admin makemessages --all --no-location
	cd django_redis_lock && $(abspath $(BIN))/django-admin compilemessages

constraints:  ## write the newest versions into constraints.txt (needs Python 3.11, the oldest)
	$(PYTHON) -c 'import sys; sys.exit("The constraints are for every Python, so the oldest has to make them: make constraints PYTHON=python3.11") if sys.version_info[:2] != (3, 11) else 0'
	rm -rf .venv-constraints
	$(MAKE) .venv-constraints/.dev VENV=.venv-constraints CONSTRAINTS=
	echo '# What the Makefile installs, on each Python: tested together. "make constraints" wrote this.' > .venv-constraints/constraints.txt
	.venv-constraints/bin/python -m pip freeze --all --exclude-editable --exclude setuptools >> .venv-constraints/constraints.txt
	mv .venv-constraints/constraints.txt .
	rm -rf .venv-constraints

dist: $(VENV)/.build  ## sdist and wheel into dist/
	rm -rf dist
	$(PY) -m build --no-isolation

build: dist  ## sdist and wheel, and the wheel tried in an environment of its own
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python $(CONSTRAINED) "$$(ls dist/*.whl)[celery]"
	build/wheel/bin/python -P tests/tools/wheel.py dist/*.whl

check-dist: $(VENV)/.release  ## what "make dist" made: as "make build", then its metadata, and known vulnerabilities
	$(MAKE) --no-print-directory --assume-old dist build
	$(PY) -m twine check --strict dist/*
	$(PY) -m pip_audit --requirement constraints.txt --disable-pip --no-deps
