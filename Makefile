# A few words; each is one command that can be typed without make.

.PHONY: setup check test bench fuzz model docs demo lock

setup: ## make .venv ready
	@root="$(CURDIR)"; . ./scripts/env.sh

check: setup ## style, types and the fast tests, in well under two minutes
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/python -m pytest -q -m "not slow"

test: ## every test
	scripts/test

bench: setup ## measure, and compare with what this machine can do at best
	scripts/bench

fuzz: setup ## feed garbage to whatever reads bytes
	scripts/fuzz

model: setup ## walk the replication model for a minute
	scripts/model

docs: setup ## regenerate docs/PROTOCOL.md
	scripts/docs

demo: ## see it work
	scripts/demo

lock: ## renew requirements.lock (needs uv)
	scripts/lock
