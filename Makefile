# make study    train the four recipes and print the comparison (creates .venv first if it is missing)
# make test     the tests
# make check    lint and formatting
# make install  only the environment; PYTHON=... chooses the interpreter
.PHONY: study test check install
PYTHON_IN_VENV = .venv/bin/python

study: .venv/installed
	$(PYTHON_IN_VENV) -m experiments.study four_way

test: .venv/installed
	$(PYTHON_IN_VENV) -m pytest

check: .venv/installed
	$(PYTHON_IN_VENV) -m ruff check .

install: .venv/installed

.venv/installed: requirements.txt constraints-cpu.txt launch/install.sh
	@launch/install.sh .venv
