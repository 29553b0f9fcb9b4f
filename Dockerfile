# docker build --tag openai_bls .                                    the server on NVIDIA's image, without an engine
# docker build --tag openai_bls:cpu --target cpu .                   for a laptop, with the demo engine
# docker build --target with-engine --build-arg MODEL=... .          with an engine inside
# docker build --tag openai_bls:vllm --build-arg TRITON_VARIANT=vllm-python-py3 .    the server with vLLM
# docker build --tag openai_bls-engine --target engine .             an engine in a container beside the server's
#
# BuildKit is needed (the default since Docker 23), but no syntax image: what is used here is in every BuildKit, so that a
# machine without a network needs the base images and the packages alone. docs/operations/docker.md has the rest.

ARG TRITON_TAG=26.07
# Of NVIDIA's images of that tag: trtllm-python-py3, vllm-python-py3, or py3, which has neither of them and suffices where
# the engine runs in a container of its own.
ARG TRITON_VARIANT=trtllm-python-py3
# Any image whose python3 has vLLM, or TensorRT-LLM.
ARG ENGINE_IMAGE=vllm/vllm-openai:v0.32.0
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

# --- the wheels of the library and of the engines ----------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS wheel
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY openai_bls openai_bls
COPY engines engines
# In the library's wheel, too: what a model repository starts from, and the demo.
COPY model_repository model_repository
COPY demo/checkpoint demo/checkpoint
# pip has hatchling, as each pyproject.toml asks, build them in environments of their own. Its settings, such as an index,
# are a secret (--secret id=pip,src=pip.conf), which no layer keeps.
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m pip wheel --no-deps --wheel-dir /wheels . engines/*

# --- for machines without a GPU: the embedded engine and the demo checkpoint -------------------------------------------
FROM ${PYTHON_IMAGE} AS cpu
ARG OPENAI_BLS_VERSION=0.1.0
# PyTorch's index of builds for CPUs (its installation page names it), gigabytes smaller than those with CUDA that pip
# takes otherwise.
ARG TORCH_INDEX_URL=
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /opt/openai_bls
# First what the lock has, by its hashes; with the wheels then torch, of which builds differ (build/lock.py).
# DL3013 wants a version: that of the wheels from the stage above.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=bind,source=requirements/serve.txt,target=/tmp/serve.txt \
    python3 -m pip install --no-deps --require-hashes --requirement /tmp/serve.txt \
    && for library in /wheels/openai_bls-*.whl; do \
        python3 -m pip install ${TORCH_INDEX_URL:+--extra-index-url "${TORCH_INDEX_URL}"} "${library}[audio,progress,server,tracing]" \
            /wheels/openai_bls_*.whl; \
    done \
    && python3 -m openai_bls install-server
# The bill of materials of every Python package that is here; what writes it leaves with the layer. `make images`
# validates its form: that takes minutes for some hundred packages on a slow machine.
RUN --mount=type=bind,source=requirements/sbom.txt,target=/tmp/sbom.txt \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /tmp/sbom \
    && python3 -m pip --python /tmp/sbom/bin/python3 install --require-hashes --requirement /tmp/sbom.txt \
    && /tmp/sbom/bin/python3 -m cyclonedx_py environment --no-validate --output-file sbom.cdx.json "$(command -v python3)" \
    && rm -r /tmp/sbom
COPY docker/start.py docker/health.py docker/
# Readable for every user, whatever the umask of the checkout was. What is written to is also group 0's, for OpenShift
# runs containers as a user of its choice in that group.
RUN chmod -R u=rwX,go=rX . \
    && install -d -o 1000 -g 0 -m 2775 /models /var/cache/huggingface /var/lib/openai_bls \
    && ln -s /models model_repository
ENV HF_HOME=/var/cache/huggingface \
    HOME=/var/lib/openai_bls \
    LOGNAME=openai_bls \
    OPENAI_BLS_HTTP_HOST=0.0.0.0 \
    OPENAI_BLS_MODEL_REPOSITORY=/models \
    OPENAI_BLS_TRITON_HOST=127.0.0.1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="openai_bls (CPU demo)" \
      io.openai-bls.sbom="/opt/openai_bls/sbom.cdx.json" \
      org.opencontainers.image.description="A Triton model repository that speaks the OpenAI API, with a toy model" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${OPENAI_BLS_VERSION}"
USER 1000:0
RUN python3 docker/start.py build
EXPOSE 8000 8001 8002 9000
HEALTHCHECK --interval=15s --timeout=10s --start-period=5m --retries=3 CMD ["python3", "/opt/openai_bls/docker/health.py"]
ENTRYPOINT ["python3", "/opt/openai_bls/docker/start.py"]
CMD ["serve", "--verbose"]

# --- the server on NVIDIA's image --------------------------------------------------------------------------------------
FROM nvcr.io/nvidia/tritonserver:${TRITON_TAG}-${TRITON_VARIANT} AS runtime
ARG TRITON_TAG
ARG TRITON_VARIANT
ARG OPENAI_BLS_VERSION=0.1.0
# Empty, where NVIDIA's packages are not what these need.
ARG EXTRAS=audio,progress,smoke,tracing,kv-events,processors
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /opt/openai_bls
# PIP_BREAK_SYSTEM_PACKAGES: in some tags python3 is the system's, which pip would otherwise refuse to add to.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=docker/install.py,target=/tmp/install.py \
    --mount=type=bind,source=requirements/image.txt,target=/tmp/image.txt \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 /tmp/install.py --lock /tmp/image.txt --extras "${EXTRAS}" \
        /wheels/openai_bls-*.whl /wheels/openai_bls_tensorrt_llm-*.whl /wheels/openai_bls_vllm-*.whl
# The bill of materials of every Python package that is here; what writes it leaves with the layer. `make images`
# validates its form: that takes minutes for some hundred packages on a slow machine.
RUN --mount=type=bind,source=requirements/sbom.txt,target=/tmp/sbom.txt \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /tmp/sbom \
    && python3 -m pip --python /tmp/sbom/bin/python3 install --require-hashes --requirement /tmp/sbom.txt \
    && /tmp/sbom/bin/python3 -m cyclonedx_py environment --no-validate --output-file sbom.cdx.json "$(command -v python3)" \
    && rm -r /tmp/sbom
COPY docker/start.py docker/health.py docker/
RUN chmod -R u=rwX,go=rX . \
    && install -d -o 1000 -g 0 -m 2775 /models /var/cache/huggingface /var/lib/openai_bls \
    && install -d -o 1000 -g 0 -m 2770 /run/openai_bls \
    && ln -s /models model_repository
# 1000 is the image's own user triton-server. The names are for libraries that ask who runs them: a user that OpenShift
# chooses is in no list of users.
ENV HF_HOME=/var/cache/huggingface \
    HOME=/var/lib/openai_bls \
    LOGNAME=openai_bls \
    OPENAI_BLS_HTTP_HOST=0.0.0.0 \
    OPENAI_BLS_MODEL_REPOSITORY=/models \
    OPENAI_BLS_TRITON_HOST=127.0.0.1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="openai_bls" \
      io.openai-bls.sbom="/opt/openai_bls/sbom.cdx.json" \
      org.opencontainers.image.description="A Triton model repository that speaks the OpenAI API, on NVIDIA's image" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${OPENAI_BLS_VERSION}" \
      org.opencontainers.image.base.name="nvcr.io/nvidia/tritonserver:${TRITON_TAG}-${TRITON_VARIANT}"
USER 1000:0
EXPOSE 8000 8001 8002 9000
# Loading a large engine takes minutes. Until the start period is over failures do not count, and one success ends it.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30m --retries=3 CMD ["python3", "/opt/openai_bls/docker/health.py"]
# NVIDIA's entrypoint sets up the compatibility libraries for older drivers and ends in an exec, as start.py does: signals
# reach the launcher, which lets running requests end.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "python3", "/opt/openai_bls/docker/start.py"]
CMD ["serve", "--verbose"]

# --- the same with an engine inside ------------------------------------------------------------------------------------
# `--build-context checkpoint=/path/to/checkpoint` puts a local directory into this stage's place.
FROM scratch AS checkpoint
COPY LICENSE /

FROM runtime AS with-engine
# A hub id; the default is the checkpoint of that build context.
ARG MODEL=/checkpoint
# Further options of `build`, with blanks between.
ARG ENGINE_ARGS=
# The token for the hub is a secret (--secret id=hf_token,src=...), which no layer keeps. What is downloaded stays in the
# cache mount, which is not at HF_HOME, for buildah leaves nothing where one was; the engine takes copies, since it is
# another file system. SC2086: ENGINE_ARGS is a list.
# hadolint ignore=SC2086
RUN --mount=type=bind,from=checkpoint,target=/checkpoint \
    --mount=type=secret,id=hf_token,uid=1000 \
    --mount=type=cache,target=/tmp/huggingface,uid=1000,gid=0,mode=0775 \
    HF_HOME=/tmp/huggingface HF_TOKEN_PATH=/run/secrets/hf_token \
    python3 docker/start.py build --model "${MODEL}" ${ENGINE_ARGS}

# --- an engine in a container of its own ---------------------------------------------------------------------------------
# The packages of that image stay as they are, whatever they pin: the library, and what `build` needs, lie in an
# environment of their own, and start the engine with the image's python3, which needs no more of theirs than it has.
FROM ${ENGINE_IMAGE} AS engine
ARG ENGINE_IMAGE
ARG OPENAI_BLS_VERSION=0.1.0
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /opt/openai_bls
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=requirements/image.txt,target=/tmp/image.txt \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip venv \
    && python3 -m pip --python venv/bin/python3 install --no-deps --require-hashes --requirement /tmp/image.txt \
    && python3 -m pip --python venv/bin/python3 install --no-index \
        /wheels/openai_bls-*.whl /wheels/openai_bls_tensorrt_llm-*.whl /wheels/openai_bls_vllm-*.whl
# The bills of materials of both; what writes them leaves with the layer. `make images` validates their form.
RUN --mount=type=bind,source=requirements/sbom.txt,target=/tmp/sbom.txt \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /tmp/sbom \
    && python3 -m pip --python /tmp/sbom/bin/python3 install --require-hashes --requirement /tmp/sbom.txt \
    && /tmp/sbom/bin/python3 -m cyclonedx_py environment --no-validate --output-file sbom.cdx.json "$(command -v python3)" \
    && /tmp/sbom/bin/python3 -m cyclonedx_py environment --no-validate --output-file sbom-venv.cdx.json venv/bin/python3 \
    && rm -r /tmp/sbom
COPY docker/start.py docker/
# The folder of the socket is for its owner and group 0 alone, in a new volume too.
RUN chmod -R u=rwX,go=rX . \
    && install -d -o 1000 -g 0 -m 2775 /models /var/cache/huggingface /var/lib/openai_bls \
    && install -d -o 1000 -g 0 -m 2770 /run/openai_bls
ENV HF_HOME=/var/cache/huggingface \
    HOME=/var/lib/openai_bls \
    LOGNAME=openai_bls \
    OPENAI_BLS_ENGINE_PYTHON=python3 \
    OPENAI_BLS_MODEL_REPOSITORY=/models \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="openai_bls (engine)" \
      io.openai-bls.sbom="/opt/openai_bls/sbom.cdx.json" \
      io.openai-bls.sbom-venv="/opt/openai_bls/sbom-venv.cdx.json" \
      org.opencontainers.image.description="An engine for a server of openai_bls in another container" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${OPENAI_BLS_VERSION}" \
      org.opencontainers.image.base.name="${ENGINE_IMAGE}"
USER 1000:0
# That its engine is ready. Loading a large one takes minutes; see above.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30m --retries=3 CMD ["/opt/openai_bls/venv/bin/openai-bls", "engine", "--status", "--socket", "/run/openai_bls/engine.sock"]
ENTRYPOINT ["/opt/openai_bls/venv/bin/python3", "/opt/openai_bls/docker/start.py"]
CMD ["engine", "--model-dir", "/models/tensorrt_llm/1", "--socket", "/run/openai_bls/engine.sock"]

# --- without --target: the server without an engine ---------------------------------------------------------------------
FROM runtime
