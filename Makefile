# SPDX-License-Identifier: Apache-2.0
# Each chore is one word, and each word is one script or tool that can be run without make.

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint fix tables asan fuzz soak bench bench-check dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv with nvsandbox and its tools, from nothing (as root also the Debian packages)
	@scripts/setup

demo: setup ## direct NVML leaves device nodes behind, nvsandbox leaves none: see both
	@scripts/demo

test: ## all tests; ARGS='-k name -x' goes to pytest
	@scripts/test $(ARGS)

lint: ## what CI checks: formats, types, warnings, static analysis
	@scripts/lint

fix: ## let the formatters and ruff change the files
	@scripts/lint --fix

tables: ## write what the security tests measure into the tables of docs/security.md
	@scripts/security-tables $(ARGS)

asan: ## ASan and UBSan: the C tests, and the package under the tests that are hardest on memory
	@scripts/native
	@scripts/sanitized

fuzz: ## what each half makes of the other's bytes, by libFuzzer (3 minutes); ARGS='600 reply': seconds, target
	@scripts/fuzz $(ARGS)

bench: ## what a call costs beside direct calls and other ways: benchmarks/results/; ARGS goes to benchmarks/bench.py
	@scripts/bench $(ARGS)

bench-check: ## the same again, compared by ratios with what is in benchmarks/results/
	@scripts/bench --check $(ARGS)

soak: setup ## faults, calls, kills and forks by the thousand (4 minutes); ARGS='--scale 0.1'
	@.venv/bin/python benchmarks/soak.py $(ARGS)

dist: setup ## an sdist and a wheel for every Python from 3.10, in dist/
	@scripts/dist

clean: ## removes what the other targets made, but not .cache
	rm -rf .venv build builddir dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
