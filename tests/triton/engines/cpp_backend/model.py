"""A stand-in for TensorRT-LLM's C++ backend `tensorrtllm`, over an engine of our own: same contract, same quirks.

Kept of it, by its public source (triton_backend/inflight_batcher_llm/src): a temperature counts only beside top_k or
top_p, and without any the output is greedy; the seed is 0 unless given; there is one end token, which is not sent;
of a stream `output_ids` holds the new tokens, `output_log_probs` all so far; no batch_index and no sequence_index
of a batch of one; both `output_ids` and `sequence_length` must be asked for; a stop request is answered by an empty
last response, and ends the latest live request of its id; errors have the executor's words around them; logits come
with the last response of a request that asks for them. They are made up here: of each token, 1 where it is.
"""

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from openai_bls.core import settings
from openai_bls.core.errors import ApiError, EngineError
from openai_bls.engines.registry import create_engine
from openai_bls.transport.ipc import sockets
from openai_bls.transport.ipc.server import ExchangeServer
from openai_bls.triton_models import pb_utils
from openai_bls.triton_models.tensorrt_llm import requests as official_requests
from openai_bls.triton_models.tensorrt_llm import responses

# The engine with its manifest; the manifest beside it is the one of a TensorRT-LLM engine, for openai_bls to read.
ENGINE = "stand_in"
_SENT = ("output_ids", "sequence_length", "output_log_probs", "cum_log_probs")


class TritonPythonModel:
    """One decoupled model with the official tensors and no exchange that openai_bls could find."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine."""
        pb_utils.log_to_triton()
        folder = Path(args["model_repository"]) / args["model_version"] / ENGINE
        self.exchange = ExchangeServer(sockets.address(f"{args['model_instance_name']}/{ENGINE}", os.getppid()))
        overrides = settings.engine_overrides(os.environ)
        self.engine = create_engine(folder, self.exchange.on_step, overrides)
        self.exchange.start(self.engine)
        self.lock = threading.Lock()
        self.live: dict[str, tuple[responses.Responder, pb_utils.ResponseStream]] = {}
        self.opened = 0

    def execute(self, requests: list[Any]) -> None:
        """Submit every request, or stop one."""
        for request in requests:
            stream = pb_utils.ResponseStream(request)
            try:
                self._take(request, pb_utils.inputs(request), stream)
            except ApiError as error:
                stream.fail(EngineError(f"[TensorRT-LLM][ERROR] {error.message} (/src/executor.cpp:1)"))

    def finalize(self) -> None:
        """Free the engine."""
        pb_utils.logger.info("the stand-in took %d requests", self.opened)
        self.engine.close()
        self.exchange.close()

    def _take(self, request: Any, arrays: dict[str, Any], stream: pb_utils.ResponseStream) -> None:
        triton_id = request.request_id()
        if official_requests.is_stop(arrays):
            pb_utils.logger.info("stop of %s", triton_id)
            with self.lock:
                found = self.live.pop(triton_id, None)
            if found is not None:
                responder, stopped = found
                responder.close()
                for request_id in responder.request_ids:
                    self.exchange.cancel_local(request_id)
                empty = np.zeros((1, 1, 0), dtype=np.int32)
                stopped.send({"output_ids": empty, "sequence_length": np.zeros((1, 1), dtype=np.int32)}, final=True)
            stream.send({}, final=True)
            return
        missing = {"output_ids", "sequence_length"} - set(request.requested_output_names())
        if missing:
            raise EngineError(f"{missing} must be present in list of output tensors")
        logits = {
            name: np.eye(self.engine.info.vocab_size, dtype=np.float32)
            for name in ("context_logits", "generation_logits")
            if np.any(arrays.pop(f"return_{name}", False))
        }
        parsed = self._parse(arrays)

        def send(outputs: dict[str, Any], final: bool) -> None:
            sent = {name: outputs[name] for name in _SENT if name in outputs}
            if final:
                self._forget(triton_id, responder)
                tokens = {"context_logits": [parsed.prompts[0]], "generation_logits": outputs["output_ids"]}
                sent |= {name: rows[np.array(tokens[name])] for name, rows in logits.items()}
            stream.send(sent, final=final)

        def fail(error: ApiError) -> None:
            self._forget(triton_id, responder)
            text = f"Executor failed process requestId 7 due to the following error: {error.message}"
            stream.fail(EngineError(text))

        responder = responses.Responder(parsed, send, fail)
        with self.lock:
            self.live[triton_id] = (responder, stream)
            self.opened += 1
        for sequence in responder.sequences():
            responder.request_ids.append(self.exchange.submit_local(sequence.request, sequence))

    def _forget(self, triton_id: str, responder: responses.Responder) -> None:
        with self.lock:
            if self.live.get(triton_id, (None,))[0] is responder:
                del self.live[triton_id]

    def _parse(self, arrays: dict[str, Any]) -> official_requests.OfficialRequest:
        if "runtime_top_k" not in arrays and "runtime_top_p" not in arrays:
            arrays.pop("temperature", None)
        if "seed" not in arrays:
            arrays["seed"] = np.zeros((1, 1), dtype=np.uint64)
        end_id = arrays.pop("end_id", None)
        parsed = official_requests.parse(arrays, self.engine.info, exclude_input_default=False)
        ends = () if end_id is None else tuple(end_id.reshape(-1).tolist())
        return msgspec.structs.replace(parsed, template=msgspec.structs.replace(parsed.template, stop_token_ids=ends))
