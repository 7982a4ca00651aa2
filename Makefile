# Needs Python 3.11 to 3.13 and nothing else; everything is installed into .venv (extras into .venv-extras).
#   make demo     simulate one training iteration and write the report to out/
#   make test     run the default tests
# The first run installs, later runs do not, unless pyproject.toml or constraints.txt changed.

PYTHON ?= python3
PYTEST_ARGS ?=
# Two processes, of which one that is done takes work from the other.
PARALLEL ?= -n 2 --dist worksteal
VENV := .venv
EXTRAS := .venv-extras
DOCS := .venv-docs
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
SUPPORTED := import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 13) else \
	"semu needs Python 3.11 to 3.13, this is %d.%d; choose another with: make PYTHON=python3.12 ..." % sys.version_info[:2])

.DEFAULT_GOAL := help

.PHONY: help demo test test-extras lint format types contracts bench-quick bench-scripts bench-paper bench-compare fuzz mutate faults soak page readme installed docs clean

help:
	@echo "make demo         simulate one training iteration, write out/"
	@echo "make test         the default tests"
	@echo "make test-extras  every test that needs no GPU, with torch and the other extras installed"
	@echo "make lint         ruff: rules and format        make format     ruff: mend both"
	@echo "make types        mypy --strict                 make contracts  import-linter"
	@echo "make bench-quick  every benchmark and every script of benchmarks/paper, in its quick form; with the extras"
	@echo "make bench-compare REF=COMMIT   speed of this tree beside another commit, in turns"
	@echo "make fuzz         damages real files and hands them to the commands, FUZZ_ARGS='--seconds 120 --seed 1'"
	@echo "make mutate       puts faults into semu that the tests must notice, MUTATE_ARGS='--count 400 --whole'"
	@echo "make faults       signals, full disks, lost workers while commands run, FAULTS_ARGS='--seconds 600 --seed 1'"
	@echo "make soak         one process for long: random jobs, drifting batches, threads, SOAK_ARGS='--count 1000'"
	@echo "make page         vendored scripts and types of report.html; needs npm"
	@echo "make readme       README.md: figures and pictures that commands of seconds make"
	@echo "make docs         the documentation as a site, site/index.html; warnings are errors, links are checked"
	@echo "make clean        remove the environments, caches and out/"

# One stamp per environment, written only when its installation has succeeded.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c '$(SUPPORTED)'
	@echo "installing semu into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing the test tools into $(VENV)"
	@$(BIN)/python $(PIP_INSTALL) '.[test]'
	@touch $@

$(EXTRAS)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c '$(SUPPORTED)'
	@echo "installing semu with every extra into $(EXTRAS)"
	@$(PYTHON) -m venv $(EXTRAS)
	@$(EXTRAS)/bin/python $(PIP_INSTALL) '.[test,executor,hta,fit,hf,ray,imports,browser,notebooks]'
	@touch $@

$(DOCS)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c '$(SUPPORTED)'
	@echo "installing semu and what builds its site into $(DOCS)"
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python $(PIP_INSTALL) '.[docs]'
	@touch $@

demo: $(VENV)/.installed
	@touch $(VENV)/.demo-start
	$(BIN)/semu simulate vlm-m --cluster h800:8x8 --parallel dp8-tp2-pp4 --out out
	@echo "wrote:"
	@find out -type f -newer $(VENV)/.demo-start | sort | sed 's/^/  /'
	@echo "open in a browser: $(CURDIR)/out/report.html"

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

test-extras: $(EXTRAS)/.installed
	$(EXTRAS)/bin/python -m pytest -m "not gpu" $(PARALLEL) $(PYTEST_ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-test
	$(BIN)/mypy --strict

contracts: $(VENV)/.installed-test
	$(BIN)/lint-imports

# With the extras: torch and Ray have rows of their own.
bench-quick: bench-scripts bench-paper

bench-scripts: $(EXTRAS)/.installed
	@for script in benchmarks/[!_]*.py; do \
		echo "$$script --quick"; \
		$(EXTRAS)/bin/python $$script --quick || exit 1; \
	done

bench-paper: $(EXTRAS)/.installed
	$(EXTRAS)/bin/python -m benchmarks.paper --all --quick --out out/paper-quick

# REF: the other commit; BENCH_ARGS: see benchmarks/_compare.py.
bench-compare: $(VENV)/.installed
	@$(BIN)/python benchmarks/_compare.py $(or $(REF),$(error name the other commit: make bench-compare REF=...)) $(BENCH_ARGS)

# Both go on where they stopped; what fails lies in .fuzz/, what survives is printed (docs: proof).
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.proof.fuzz $(FUZZ_ARGS)

mutate: $(VENV)/.installed-test
	$(BIN)/python -m tests.proof.mutate $(MUTATE_ARGS)

# Commands in processes of their own; disks are small file systems where root may mount them (docs: proof).
faults: $(VENV)/.installed-test
	$(BIN)/python -m tests.proof.faults $(FAULTS_ARGS)

soak: $(VENV)/.installed-test
	$(BIN)/python -m tests.proof.soak $(SOAK_ARGS)

# Needs npm: the page's library as the registry has it, and its scripts' types.
page:
	@rm -rf out/npm && mkdir -p out/npm
	@cd out/npm && npm pack --silent uplot@1.6.32 >/dev/null && tar xzf uplot-1.6.32.tgz
	@npm install --silent --no-save --prefix out/npm typescript@5.9.3
	@cp out/npm/package/dist/uPlot.iife.min.js semu/present/page/assets/vendor/uplot.js
	@cp out/npm/package/dist/uPlot.min.css semu/present/page/assets/vendor/uplot.css
	@cp out/npm/package/LICENSE semu/present/page/assets/vendor/uplot.LICENSE
	git diff --exit-code --stat -- semu/present/page/assets/vendor
	out/npm/node_modules/.bin/tsc -p tests/present/page/tsconfig.json

readme: $(VENV)/.installed
	$(BIN)/python -m benchmarks.readme

installed: $(EXTRAS)/.installed $(DOCS)/.installed

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) $(EXTRAS) $(DOCS) out site build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -type d -name __pycache__ -prune -exec rm -rf {} +
