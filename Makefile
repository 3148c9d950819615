# Everything runs in .venv, which is made on first use from the python3 on PATH, with the versions of
# constraints.txt. CONSTRAINTS= installs the newest versions, into .venv-newest.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV ?= $(if $(CONSTRAINTS),.venv,.venv-newest)
BIN := $(VENV)/bin
PY := $(BIN)/python
ARGS ?=
# Where to write what the tests cover, by an absolute path; nothing is measured without it.
COVERAGE ?=
ifneq ($(COVERAGE),)
export COVERAGE_FILE := $(COVERAGE)
endif
PYTEST := $(PY) -m $(if $(COVERAGE),coverage run -m )pytest $(if $(COVERAGE),-m 'not timed')
# A worker that crashes fails its test once; it would be tried again otherwise.
PARALLEL := -n 2 --dist loadfile --max-worker-restart 0
INSTALL := -m pip install --quiet --disable-pip-version-check
CONSTRAINED := $(INSTALL) $(CONSTRAINTS:%=--constraint %)

.DEFAULT_GOAL := help
.PHONY: help demo test coverage covered mutants mutmut matrix browser databases brokers workers observability tutorial layouts screenshots messages constraints lint format types bench compare load sizing soak chaos simulate docs build release-check clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp per dependency group, renewed when pyproject.toml or the constraints change.
$(VENV)/.venv:
	$(PYTHON) -c 'import sys; sys.exit("django-redis-lock needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(PY) $(CONSTRAINED) --upgrade 'pip>=25.3'
	@touch $@
$(VENV)/.%: pyproject.toml $(CONSTRAINTS) | $(VENV)/.venv
	$(PY) $(CONSTRAINED) $(CONSTRAINTS:%=--build-constraint %) --editable '.[celery]' --group $*
	@touch $@

demo: $(VENV)/.demo  ## the flash sale and the duplicate tasks, live (ARGS=--once: check the figures and exit)
	$(PY) -m example_project.demo $(ARGS)

test: $(VENV)/.test  ## the tests, on an embedded Valkey server
	PYTHONDEVMODE=1 $(PYTEST) $(PARALLEL) $(ARGS)

coverage: $(VENV)/.test  ## branches that the tests cover: test, workers and layouts; at least 95 %
	rm -rf build/coverage && mkdir -p build/coverage
	$(MAKE) test workers layouts COVERAGE=$(CURDIR)/build/coverage/data ARGS=
	$(MAKE) covered COVERAGE=$(CURDIR)/build/coverage/data

# Reports what COVERAGE has collected.
covered: $(VENV)/.test
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

matrix: $(VENV)/.test  ## the tests on old and new versions of everything (ARGS="oldest": one row; ARGS=--help)
	$(PY) -m tests.matrix $(ARGS)

browser: $(VENV)/.browser  ## the admin page in a real browser (needs Chromium: apt-get install chromium)
	PYTHONDEVMODE=1 $(PY) -m pytest tests/browser $(ARGS)

databases: $(VENV)/.databases  ## transactions and fencing on PostgreSQL (needs it: apt-get install postgresql)
	PYTHONDEVMODE=1 $(PY) -m pytest tests/databases $(ARGS)

brokers: $(VENV)/.brokers  ## Celery tasks on each broker and result backend (needs apt-get install rabbitmq-server)
	PYTHONDEVMODE=1 $(PY) -m pytest tests/brokers --ds=tests.brokers.settings $(ARGS)

workers: $(VENV)/.test  ## worker processes of Celery and uWSGI that die, hang or are inspected
	PYTHONDEVMODE=1 $(PYTEST) $(PARALLEL) tests/workers $(ARGS)

observability: $(VENV)/.observability  ## metrics in a real Prometheus (needs apt-get install prometheus; ARGS=--record)
	PYTHONDEVMODE=1 $(PY) -m pytest tests/observability $(ARGS)

tutorial: $(VENV)/.test  ## the tutorial word for word in an empty folder, and the Python of each page
	PYTHONDEVMODE=1 $(PY) -m pytest $(PARALLEL) tests/tutorial $(ARGS)

layouts: $(VENV)/.test  ## the contract on every server layout (needs apt-get install redis-server faketime)
	PYTHONDEVMODE=1 $(PYTEST) tests/layouts $(ARGS)

screenshots: $(VENV)/.browser  ## take the documentation's pictures of the admin page (needs Chromium)
	$(PY) -m tests.browser.screenshots

messages: $(VENV)/.test  ## collect and compile the texts to translate (needs gettext: apt-get install gettext)
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

lint: $(VENV)/.lint  ## ruff, mypy, pyright, import-linter, and the schemas of YAML files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/typed_usage.ini tests/typed_usage.py tests/typed_tasks.py
	$(BIN)/basedpyright --pythonpath $(PY)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml

format: $(VENV)/.lint  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench  ## measure against the peers; table, JSON and picture into benchmarks/results
	$(PY) -m benchmarks $(ARGS)

compare: $(VENV)/.bench  ## guards for Celery tasks side by side (ARGS=--docs: into the documentation)
	$(PY) -m benchmarks.celery_guards $(ARGS)

load: $(VENV)/.bench  ## a shop under load, with each guard; 24 minutes (ARGS=--quick: one and a half)
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || (apt-get update -qq && apt-get install -y -qq postgresql)
	$(PY) -m benchmarks.load $(ARGS)

sizing: $(VENV)/.bench  ## what a server and a process carry; 5 minutes (ARGS=--quick: half a minute)
	$(PY) -m benchmarks.sizing $(ARGS)

mutants: $(VENV)/.test  ## break the Lua scripts one place at a time: a test has to fail (ARGS="--sample 20")
	$(PY) -m tests.mutants $(ARGS)

mutmut: $(VENV)/.mutants  ## the same for protocol/ and the guard of Celery tasks, with mutmut; hours
	$(BIN)/mutmut run --max-children 1 $(ARGS)
	$(BIN)/mutmut results

soak: $(VENV)/.test  ## break it for a while and check the recorded history (ARGS="--seconds 600")
	$(PY) -m tests.soak $(ARGS)

chaos: $(VENV)/.test  ## one fault at a time on each layout of servers; needs libfaketime (ARGS="--seconds-each 60")
	$(PY) -m tests.chaos $(ARGS)

simulate: $(VENV)/.test  ## the protocol on a virtual clock, in random schedules (ARGS="--schedules 1000000 --seed 7")
	$(PY) -m tests.simulation $(ARGS)

docs: $(VENV)/.docs  ## build the documentation; warnings are errors
	$(BIN)/sphinx-build --nitpicky --fail-on-warning --fresh-env docs docs/_build/html

release-check: $(VENV)/.release  ## what has to be right about a release (ARGS="--tag v1.0.0 --audit")
	$(PY) -m tests.release $(ARGS)

build: $(VENV)/.build  ## sdist and wheel into dist/
	$(PY) -m build

clean:  ## remove .venv and all build products
	rm -rf .venv .venv-* dist build mutants docs/_build .pytest_cache .mypy_cache .ruff_cache benchmarks/results
