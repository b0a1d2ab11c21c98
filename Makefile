# Thin targets over the scripts. PYTHON picks the interpreter, NANOMLE_CACHE moves every cache.
PYTHON ?= python3
SEED ?= 0
RUN ?= runs/demo-$(SEED)
BIN := .venv/bin

.PHONY: demo test hostile bench lint clean

demo: .venv/installed
	$(BIN)/python train.py $(if $(wildcard $(RUN)/latest),--resume $(RUN),--task random-pizza --model tiny --run-dir $(RUN) --seed $(SEED))
	$(BIN)/python eval.py $(RUN)

test: .venv/installed
	$(BIN)/python -m pytest

hostile: .venv/installed
	$(BIN)/python tests/hostile/run.py
	NANOMLE_KILLS=50 $(BIN)/python -m pytest -q tests/test_sandbox_kills.py

bench: .venv/installed
	$(BIN)/python bench/sandbox.py

lint: .venv/installed
	$(BIN)/ruff check .

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

clean:
	rm -rf .venv
