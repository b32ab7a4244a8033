# make study    train the four recipes and print the comparison (creates .venv first if it is missing)
# make test     the tests
# make check    lint and formatting
# make notebooks   execute the notebooks again; make readme: its table and figure, from results/
# make install  only the environment; PYTHON=... chooses the interpreter
.PHONY: study test check notebooks readme install tools
PYTHON_IN_VENV = .venv/bin/python

study: .venv/installed
	$(PYTHON_IN_VENV) -m experiments.study four_way

test: tools
	$(PYTHON_IN_VENV) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: tools
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .

notebooks: tools
	$(PYTHON_IN_VENV) -m analysis.notebooks.execute

readme: .venv/installed
	$(PYTHON_IN_VENV) -m analysis.readme

install: .venv/installed

# an installation without a package index may lack them
tools: .venv/installed
	@$(PYTHON_IN_VENV) launch/missing.py requirements-tools.txt

.venv/installed: requirements.txt requirements-tools.txt constraints-cpu.txt launch/install.sh
	@launch/install.sh .venv
	@$(PYTHON_IN_VENV) -m experiments.recipe schema > recipes/schema.json # for editors
