# `make demo` and `make test` are the two commands; each sets up .venv by itself when it is missing or stale.
PYTHON ?= python3
RUN := .venv/bin/python
ROOMS := eagle_eye collectors detectors remediation dashboard
ARGS ?=
# ROOM of `make unit`: a folder of tests/unit, with the contract tests of its room
UNIT_ROOMS := $(sort $(patsubst tests/unit/%/,%,$(filter-out %__pycache__/,$(wildcard tests/unit/*/ tests/unit/*/*/))))
CONTRACTS_collectors := tests/contract/test_collectors.py
CONTRACTS_detectors := tests/contract/test_detectors.py tests/contract/test_runner.py
CONTRACTS_eagle_eye := tests/contract/test_stream.py
CONTRACTS_remediation := tests/contract/test_guards_actions.py
UNIT_ROOM := $(patsubst %/,%,$(ROOM))
# thirds that take about as long as each other, each a process with ports of its own: `pytest -n` would collect everything in each process, and report each test to another one
UNIT_1 := tests/unit/eagle_eye $(wildcard tests/unit/test_*.py)
UNIT_2 := tests/unit/collectors tests/unit/detectors tests/contract
UNIT_3 := $(filter-out tests/unit/__pycache__ $(UNIT_1) $(UNIT_2),$(patsubst %/,%,$(wildcard tests/unit/*/)))
UNIT_ONE := tests/unit/$(UNIT_ROOM) $(CONTRACTS_$(firstword $(subst /, ,$(UNIT_ROOM))))
UNIT_PARTS := $(if $(ROOM),unit-of-ONE,unit-of-1 unit-of-2 unit-of-3)
# a test run starts hundreds of processes of ours: none should compile every module anew, as images with this set would have it
unexport PYTHONDONTWRITEBYTECODE
# for seven thousand small folders, many with a ledger in them, and for what tests make in TMPDIR: in memory, where the system has such a place with 4 GB free; kept when a test fails
MEMORY = $(shell [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 4000000 ] 2>/dev/null && echo /dev/shm || echo /tmp)
# one more than there are cores, since tests wait for processes and sockets for a third of their time
AT_ONCE := -n $(shell expr $$(nproc) + 1)
# whole files, in the order of tests/conftest.py
BY_FILE := $(AT_ONCE) --dist loadfile --no-loadscope-reorder

.PHONY: demo test check unit processes scenarios services bench soak stubs screenshots clean help

help:  ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

.venv/.ready: pyproject.toml constraints.txt requirements-broker.txt scripts/set-up
	@PYTHON=$(PYTHON) scripts/set-up

.venv/.servers: .venv/.ready scripts/install-debian
	@scripts/install-debian prometheus prometheus-alertmanager postgresql chromium fonts-dejavu-core iproute2 && touch $@

demo: .venv/.ready  ## a real training job, broken ten times and healed; ends with a table. KEEP=1 leaves the dashboard up
	@.venv/bin/eagle-eye demo $(if $(KEEP),--keep) $(ARGS)

test: export EAGLE_EYE_REQUIRE_ALL := 1
test: check unit processes  ## everything that must hold before a change lands

# its parts run side by side; what each prints comes in one piece
check: .venv/.ready  ## ruff, mypy, who may import whom, circles, unused code, names with two meanings, generated stubs
	@$(MAKE) --no-print-directory -s -j 2 --output-sync=target types style imports stubs-fresh compiled

.PHONY: types style imports stubs-fresh compiled
types:
	@.venv/bin/mypy
style:
	@.venv/bin/ruff check .
imports:
	@.venv/bin/lint-imports --no-cache > .lint-imports.log 2>&1 || (cat .lint-imports.log; rm -f .lint-imports.log; exit 1); rm -f .lint-imports.log
	@$(RUN) scripts/import-circles
	@$(RUN) scripts/unreachable-modules
	@scripts/duplicate-names
stubs-fresh:
	@scripts/check-stubs
# tests are compiled once here, and not by each process that runs them
compiled:
	@.venv/bin/pytest -q --collect-only tests > .collected.log 2>&1 || (cat .collected.log; rm -f .collected.log; exit 1); rm -f .collected.log

unit: .venv/.ready  ## unit and contract tests: no network, a fake clock. ROOM=detectors or ROOM=remediation/planner: of one room
	@test -z "$(ROOM)" -o -d "tests/unit/$(UNIT_ROOM)" || { echo "no unit tests of a room '$(ROOM)'; there are: $(UNIT_ROOMS)" >&2; exit 2; }
	@$(MAKE) --no-print-directory -s -k -j 3 --output-sync=target $(UNIT_PARTS)

.PHONY: unit-of-1 unit-of-2 unit-of-3 unit-of-ONE
unit-of-1 unit-of-2 unit-of-3 unit-of-ONE: unit-of-%:
	@folder=$$(mktemp -d -p $(MEMORY)) && EAGLE_EYE_PORTS=1$(subst ONE,4,$*)000-1$(subst ONE,4,$*)999 TMPDIR=$(MEMORY) .venv/bin/pytest -q -p no:cacheprovider --basetemp "$$folder" $(UNIT_$*) && rm -rf "$$folder"

processes: .venv/.servers  ## scenarios and services in one run
	@.venv/bin/pytest -q $(BY_FILE) tests/scenario tests/services

scenarios: .venv/.ready  ## real processes, killed for real
	@.venv/bin/pytest -q $(BY_FILE) tests/scenario

services: .venv/.servers  ## real servers and streams
	@.venv/bin/pytest -q $(BY_FILE) tests/services

bench: .venv/.ready  ## every benchmark; writes benchmarks/RESULTS.md
	@$(RUN) -m benchmarks $(ARGS)

soak: .venv/.ready  ## the long ones: ten healthy minutes must raise nothing, a hundred fault schedules must end with the same bits; writes benchmarks/RESULTS.md
	@$(RUN) -m benchmarks benchmarks.chain.soak benchmarks.cluster.telemetry benchmarks.elastic.schedules

stubs: .venv/.ready  ## control.proto → Python
	@$(RUN) -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. eagle_eye/rpc/control.proto

screenshots: .venv/.servers  ## docs/images from the recorded run
	@$(RUN) scripts/screenshots

clean:  ## forget the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
