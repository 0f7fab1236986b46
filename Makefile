# Each target works from a fresh clone on a machine with Python 3.11: it sets up what it needs first.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-fast lint format bench reproduce

setup: $(READY)

# constraints.txt pins the exact set that the tests run on; without it pip takes a torch build with gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/tellapart demo

# two processes, each with whole files, so that what a file's tests share is made once; tests/conftest.py orders them
TWO := -n 2 --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(BIN)/pytest $(TWO)

# without those that are marked slow: something of every package, in less than two minutes
test-fast: $(READY)
	$(BIN)/pytest $(TWO) -m "not slow"

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
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/neighbours.py
	$(BIN)/python benchmarks/self_retrieval.py $(PHOTOS)
	$(if $(PHOTOS),$(BIN)/python benchmarks/collection.py $(PHOTOS))

# the embedded captioners again, from photos and captions: DATA has flickr8k/, coco/ and text/, DETECTOR is a YOLOX export
reproduce: $(READY)
	$(BIN)/python scripts/reproduce.py $(DATA) --detector $(DETECTOR)
