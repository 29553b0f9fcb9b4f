# In the place of NVIDIA's Triton image, and of vLLM's: python3 with packages, tritonserver, the entry point and the user.
# openai is one that those do not have.
FROM localhost/openai_bls:cpu AS cpu
FROM localhost/python:3.11
COPY --from=cpu /usr/local /usr/local
COPY --from=cpu /usr/share/openai_bls /usr/share/openai_bls
RUN python3 -m pip uninstall --yes \
        openai_bls openai_bls_llama_cpp openai_bls_tensorrt_llm openai_bls_transformers openai_bls_vllm \
        openai \
    && useradd --uid 1000 triton-server \
    && mkdir -p /opt/nvidia \
    && printf '#!/bin/bash\necho "NVIDIA would speak here"\nexec "$@"\n' > /opt/nvidia/nvidia_entrypoint.sh \
    && chmod 755 /opt/nvidia/nvidia_entrypoint.sh
