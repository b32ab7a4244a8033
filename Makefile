# make study    train the four recipes and print the comparison (creates .venv first if it is missing)
# make test     the tests
# make check    lint and formatting
# make notebooks   execute the notebooks again; make readme: its table and figure, from results/
# make install  only the environment; PYTHON=... chooses the interpreter
.PHONY: study test check notebooks readme install
PYTHON_IN_VENV = .venv/bin/python

study: .venv/installed
	$(PYTHON_IN_VENV) -m experiments.study four_way

test: .venv/installed
	$(PYTHON_IN_VENV) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: .venv/installed
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .

notebooks: .venv/installed
	$(PYTHON_IN_VENV) -m analysis.execute

readme: .venv/installed
	$(PYTHON_IN_VENV) -m analysis.readme

install: .venv/installed

.venv/installed: requirements.txt constraints-cpu.txt launch/install.sh
	@launch/install.sh .venv
