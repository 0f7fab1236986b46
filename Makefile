# Each target works from a fresh clone on a machine with Python 3.11: it sets up what it needs first.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-fast docs docs-test package lint format bench campaign reproduce

setup: $(READY)

# constraints.txt pins the exact set that the tests run on.  Of PyTorch, a CPU build is enough, if pip is told where one is.
$(READY): pyproject.toml packages/capscore/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e packages/capscore -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/tellapart demo

# two processes, each with whole files, so that what a file's tests share is made once; tests/conftest.py orders them
TWO := -n 2 --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(BIN)/pytest $(TWO)

# without those that are marked slow: something of every package, in less than two minutes
test-fast: $(READY)
	$(BIN)/pytest $(TWO) -m "not slow and not docs"

# the documentation as a web site in site/, without a network; a broken link is an error
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# every command and block of code of the README and docs/, and the site itself
docs-test: $(READY)
	$(BIN)/pytest $(TWO) -m "docs or not docs" tests/test_readme.py tests/test_docs.py tests/test_docs_site.py tests/test_docs_commands.py

# wheel and source archive in dist/, the same bytes for the same commit, and the wheel tried in a new environment
package: $(READY)
	$(BIN)/python scripts/check_package.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# PHOTOS=DIR measures on your own photos instead of the album, CAPTIONS=F.json on your own captions
bench: $(READY)
	$(BIN)/python benchmarks/features.py $(PHOTOS)
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/decoding.py
	$(BIN)/python benchmarks/captioners.py --repeats 1
	$(BIN)/python benchmarks/captions.py
	$(BIN)/python benchmarks/metrics.py $(CAPTIONS)
	$(BIN)/python benchmarks/retrievers.py
	$(BIN)/python benchmarks/objectives.py --repeats 2
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/neighbours.py
	$(BIN)/python benchmarks/self_retrieval.py $(PHOTOS)
	$(if $(PHOTOS),$(BIN)/python benchmarks/collection.py $(PHOTOS))

# attacks on the whole program, an hour or two: docs/campaigns.md.  CAMPAIGN="kill --count 60" does one of them, or less
campaign: $(READY)
	$(BIN)/python -m campaigns $(CAMPAIGN)

# the embedded captioners again, from photos and captions: DATA has flickr8k/, coco/ and text/, DETECTOR is a YOLOX export;
# OPTIONS="--seed 100 --out again" for another seed
reproduce: $(READY)
	$(BIN)/python scripts/reproduce.py $(DATA) --detector $(DETECTOR) $(OPTIONS)
