# Two commands: `make reproduce` and `make test`. Both set up .venv first if it is not there.
PYTHON ?= python3
VENV ?= .venv
PROFILE ?= smoke
# Where pip finds torch, if not where it finds everything else: PyTorch's own index of CPU wheels is gigabytes smaller.
TORCH_INDEX ?=
bin := $(VENV)/bin

# Minutes on two cores: laptop's for each paper.
budget-smoke := 12
budget-laptop := 100
budget-test := 10
# A command, and how long it took; its own exit code.
timed = start=$$(date +%s); code=0; $(2) || code=$$?; took=$$(($$(date +%s) - start)); \
	echo "took $$((took / 60)) min $$((took % 60)) s$(if $(1),; on two cores at most $(1) min)"; exit $$code

.DELETE_ON_ERROR:
.PHONY: setup reproduce test nightly test-gpu lint clean

setup: $(VENV)/.installed

# Smoke always runs anew. The others take long: what is complete is left as it is. Laptop's results are those we publish.
reproduce: $(VENV)/.installed
	$(call timed,$(budget-$(PROFILE)),$(bin)/lockstep run all --profile $(PROFILE) $(if $(filter-out smoke,$(PROFILE)),--resume))
	$(if $(filter laptop,$(PROFILE)),$(bin)/python -m reports.publish)

test: $(VENV)/.installed
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(call timed,$(budget-test),$(bin)/python -m pytest -q -m "not nightly" -n 2 --dist loadgroup --no-loadscope-reorder --durations 15)

# What a commit need not wait for: longer tests, random cases in virtual time, on threads and of pipelines, and killed processes.
nightly: test
	$(bin)/python -m pytest -q -m nightly
	$(bin)/python -m tests.soak --runs 1000
	$(bin)/python -m tests.soak --runs 300 --cluster local
	$(bin)/python -m tests.soak --runs 200 --of pipelines
	$(bin)/python -m tests.soak --kills 50

test-gpu:
	$(PYTHON) -m pytest -q tests/gpu

lint: $(VENV)/.installed
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

clean:
	rm -rf $(VENV) reports/output .hypothesis .pytest_cache .ruff_cache *.egg-info
	find . \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# torch first and alone: see requirements.txt.
$(VENV)/.installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Lockstep needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install --quiet $(addprefix --index-url ,$(TORCH_INDEX)) $(shell grep '^torch==' requirements.txt)
	$(bin)/python -m pip install --quiet -r requirements.txt
	$(bin)/python -m pip install --quiet --no-deps --editable .
	@touch $@
