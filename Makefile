# Everything is installed into .venv; a second run installs nothing. `make help` lists what there is.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help run test check bench wheel warden constraints clean
.PHONY: lint types layers unit conformance slow hostile fuzz sanitizer compiler docs
.PHONY: legs abreast alone begun container kubernetes test-kubernetes suites services services-down

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip -qq --disable-pip-version-check
# What a slow or shaky way to the packages may take.
export PIP_DEFAULT_TIMEOUT ?= 120
export PIP_RETRIES ?= 10
# What .venv is made of, so that the same versions run everywhere; those who use the package get its
# ranges. Set in the environment, it also holds for what pip builds with; `make CONSTRAINTS= ...`
# takes the newest of everything.
CONSTRAINTS ?= constraints.txt
CONSTRAINED := $(if $(CONSTRAINTS),PIP_CONSTRAINT=$(abspath $(CONSTRAINTS)))
DEV_EXTRAS := dev,examples,wasm-python,wasm-javascript
PYTEST := $(BIN)/python -m pytest
# Legs that mostly wait, for sleeps, kills and engines: three of their tests at a time, and those of one
# file in a row where they share a costly fixture.
ABREAST := $(PYTEST) -n 3 --dist

NATIVE := $(wildcard native/warden/*.[ch])
PACKAGING := pyproject.toml hatch_build.py $(CONSTRAINTS)

# What the tests may not do without: one that is missing here fails them and is never skipped.
ifeq ($(shell uname -s),Linux)
export RINGFENCE_REQUIRE_BACKENDS ?= process,bubblewrap,container,wasm
# Podman beside Docker, which takes root or CONTAINER_HOST; `make test PODMAN=` does without.
PODMAN ?= podman
# What they run against, brought up for the legs that need it; see scripts/services.
SERVICES ?= docker $(PODMAN)
# The leg on a real cluster, which takes root or KUBECONFIG; `make test CLUSTER=` does without.
CLUSTER ?= test-kubernetes
else
export RINGFENCE_REQUIRE_BACKENDS ?= process,wasm
PODMAN ?=
SERVICES ?=
CLUSTER ?=
endif

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.installed ## run an untrusted job in a sandbox, on data that ships with it
	$(BIN)/python examples/main_job.py

test: $(VENV)/.dev ## everything that CI runs
	$(BIN)/python -m scripts.services around -- $(MAKE) --no-print-directory legs

# What is quick comes first, so that it fails first. What the cluster is built from is begun before
# all, and is built in what time the others leave.
legs: begun compiler check docs conformance container $(CLUSTER) suites slow hostile fuzz sanitizer

check: lint types layers unit ## lint, types, layers and unit tests, in some two minutes

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m scripts.twins --check

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

# The legs are parted so that no test runs in two of them.
unit: $(VENV)/.warden
	$(PYTEST) -m 'not (conformance or container or kubernetes or slow or hostile or fuzz or sanitizer)'

conformance: $(VENV)/.warden services
	$(ABREAST) worksteal -m 'conformance and not (kubernetes or hostile or fuzz or sanitizer)'

container: $(VENV)/.warden services
	$(ABREAST) loadfile -m 'container and not (conformance or kubernetes or slow or hostile or fuzz or sanitizer)' \
		$(if $(PODMAN),,--ignore=tests/container/test_podman.py)

begun: $(VENV)/.dev
	$(if $(CLUSTER),$(BIN)/python -m scripts.services prepare kubernetes)

kubernetes: $(VENV)/.warden
	$(BIN)/python -m scripts.services up kubernetes
	eval "$$($(BIN)/python -m scripts.services env kubernetes)" && $(PYTEST) -m kubernetes

test-kubernetes: $(VENV)/.dev ## the tests on a real cluster, which is brought up for them and put down
	$(BIN)/python -m scripts.services around -- $(MAKE) --no-print-directory kubernetes

suites: $(VENV)/.warden services ## the frameworks' own suites, each in an environment of its own
	$(BIN)/python -m scripts.suites run

# Tests of these look at all that the machine has, or share images that they make and remove: not abreast.
ALONE := tests/faults tests/image tests/linux tests/scale tests/sessions tests/warden tests/unit/test_benchmarks.py
SLOW := -m 'slow and not (conformance or kubernetes or hostile or fuzz or sanitizer)'
slow: abreast alone

abreast: $(VENV)/.warden services
	$(ABREAST) loadfile $(SLOW) $(ALONE:%=--ignore=%)

alone: $(VENV)/.warden services
	$(PYTEST) $(SLOW) $(ALONE)

hostile: $(VENV)/.warden services
	$(PYTEST) -m 'hostile and not (kubernetes or fuzz or sanitizer)'

fuzz: $(VENV)/.warden
	$(PYTEST) -m 'fuzz and not sanitizer'

sanitizer: compiler $(VENV)/.warden
	$(PYTEST) -m sanitizer

services: $(VENV)/.dev ## bring up what the tests run against; `make services-down` puts it down
	$(if $(SERVICES),$(BIN)/python -m scripts.services up $(SERVICES))

services-down: $(VENV)/.dev
	$(if $(SERVICES),$(BIN)/python -m scripts.services down $(SERVICES))

compiler:
	scripts/need-sanitizers

docs: $(VENV)/.warden services
	$(PYTEST) tests/test_docs.py -m "not kubernetes"

bench: $(VENV)/.warden ## measure against floors and peers, as ratios
	$(BIN)/python -m benchmarks

wheel: $(VENV)/.dev ## one wheel with the warden for x86-64 and arm64, and the sdist
	rm -rf dist
	RINGFENCE_WARDEN_TARGETS='x86_64 aarch64' $(BIN)/python -m build --outdir dist
	$(BIN)/python scripts/check_wheel.py x86_64 aarch64 dist/*.whl

warden: $(VENV)/.dev ## build the warden in place
	$(BIN)/python hatch_build.py

constraints: ## move the development environment to the newest of everything that it may have
	scripts/make-venv $(PYTHON) build/newest
	build/newest/bin/python $(PIP) install '.[$(DEV_EXTRAS)]'
	{ echo '# What .venv is made of. Written by `make constraints`.'; \
	  build/newest/bin/python -m pip freeze --exclude ringfence; } >build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/newest

clean: ## remove what was made here, .venv too
	rm -rf $(VENV) build dist src/ringfence/warden/bin
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name .git -prune -o -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made: scripts/make-venv
	scripts/make-venv $(PYTHON) $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made $(PACKAGING) $(NATIVE)
	$(CONSTRAINED) $(BIN)/python $(PIP) install -e '.[examples]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(PACKAGING)
	$(CONSTRAINED) $(BIN)/python $(PIP) install -e '.[$(DEV_EXTRAS)]'
	@touch $@ $(VENV)/.installed $(VENV)/.warden

$(VENV)/.warden: $(VENV)/.dev $(NATIVE)
	$(BIN)/python hatch_build.py
	@touch $@
