# A few words; each is one command that can be typed without make.

.PHONY: setup check test again simulate chaos mutants bench fuzz model evidence docs transcripts demo lock

setup: ## make .venv ready
	@root="$(CURDIR)"; . ./scripts/env.sh

check: setup ## style, types and the fast tests, in well under two minutes
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/python -m pytest -q -m "not slow" -n 4 --dist loadscope --no-loadscope-reorder

test: ## every test
	scripts/test

again: setup ## every test, ten times: a test that fails once is a defect
	scripts/again

simulate: setup ## storms over simulated clusters: SEED=7 for one, SEEDS=1000 for many
	scripts/simulate $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),20)) $(if $(SECONDS),--seconds $(SECONDS))

chaos: setup ## hurt clusters of real processes under load: MINUTES=30
	scripts/chaos --minutes $(or $(MINUTES),5)

mutants: setup ## undo each rule (docs/RULES.md), then look for fresh seeds of storms that catch each planted bug
	.venv/bin/python -m pytest -q tests/test_rules.py
	scripts/simulate --mutants --seeds 60

bench: setup ## measure, and compare with what this machine can do at best
	scripts/bench

fuzz: setup ## feed garbage to whatever reads bytes
	scripts/fuzz

model: setup ## walk the replication model for a minute
	scripts/model

evidence: setup ## tell which of the long runs that were kept still count
	scripts/bench --standing
	scripts/fuzz --check
	-scripts/model --check
	scripts/simulate --check
	scripts/chaos --check
	scripts/again --check
	scripts/first-contact --check

docs: setup ## regenerate the pages of docs that come from code
	scripts/docs

transcripts: setup ## play the replication transcripts, and write docs/LECTURE.md
	scripts/transcripts

demo: ## see it work
	scripts/demo

lock: ## renew requirements.lock and requirements-image.lock (needs uv)
	scripts/lock
