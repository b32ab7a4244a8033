.PHONY: help study test lab check notebooks readme install tools
PYTHON_IN_VENV = .venv/bin/python

# notebooks import the code by this file, which names the old folder after the repository was copied or moved
$(shell [ -L .venv ] || for file in .venv/lib/python3*/site-packages/project.pth; do \
	[ ! -w "$$file" ] || [ "$$(cat "$$file")" = "$$PWD" ] || echo "$$PWD" >"$$file"; done)

help:
	@echo "make study      train the four recipes on real text, here, and print the comparison"
	@echo "make lab        open the notebooks in JupyterLab, on your newest runs, on RUNS=folder or on RUNS=kept"
	@echo "make test       run the tests"
	@echo "make check      lint, check the formatting and the types"
	@echo "make notebooks  execute the notebooks again, on the kept runs"
	@echo "make readme     write the generated parts of docs/ again, from results/"
	@echo "make install    make the environment .venv, as all of these do first; PYTHON=... chooses the interpreter,"
	@echo "                GPU=1 a torch for GPUs where there is none, GPU=0 a torch for the CPU"

study: .venv/installed
	$(PYTHON_IN_VENV) -m experiments.study four_way

test: tools
	$(PYTHON_IN_VENV) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lab: tools
	@$(PYTHON_IN_VENV) launch/missing.py requirements-lab.txt >/dev/null \
		|| $(PYTHON_IN_VENV) -m pip install -qq --disable-pip-version-check -r requirements-lab.txt
	$(PYTHON_IN_VENV) -m jupyterlab --allow-root .

check: tools
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy

notebooks: tools
	$(PYTHON_IN_VENV) -m tools.notebooks

readme: .venv/installed
	$(PYTHON_IN_VENV) -m tools.readme
	@for file in $(wildcard extensions/*/fit.py); do $(PYTHON_IN_VENV) -m $$(echo $${file%.py} | tr / .) || exit; done

install: .venv/installed

# an installation without a package index may lack them
tools: .venv/installed
	@$(PYTHON_IN_VENV) launch/missing.py requirements-tools.txt

.venv/installed: requirements.txt requirements-tools.txt constraints.txt constraints-cpu.txt launch/install.sh
	@launch/install.sh .venv
