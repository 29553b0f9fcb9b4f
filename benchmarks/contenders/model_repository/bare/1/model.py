"""Triton model `bare`: every step sends one response, with one token id, for each active request.

One thread, no text, no protocol: what is left is the cost of a decoupled Python model. The environment sets the tokens
(CONTENDER_TOKEN_IDS, emitted in a cycle) and the pace (CONTENDER_STEP_DELAY_MS, 0 is as fast as possible).
"""

import os
import threading
import time
from collections import deque
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Stream:
    """A request's way back, used by the engine's thread alone, hence without a lock."""

    def __init__(self, request: Any) -> None:
        # Read as an engine reads it; the tokens do not depend on it.
        pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        self.left = pb_utils.get_input_tensor_by_name(request, "request_output_len").as_numpy().item()
        self.position = 0
        self.sender = request.get_response_sender()

    def fail(self, message: str) -> None:
        """End with an error."""
        error = pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)
        self.sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)

    def step(self, tokens: list[Any]) -> bool:
        """Send the next of `tokens`; whether more are to come. The last one carries FINAL."""
        tensor = pb_utils.Tensor("output_ids", tokens[self.position % len(tokens)])
        self.position += 1
        self.left -= 1
        # There is one output, and so none that a client may not have asked for: the stub drops those without the GIL.
        self.sender.send(pb_utils.InferenceResponse([tensor]), flags=0 if self.left else FINAL)
        return self.left > 0


class TritonPythonModel:
    """The engine."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the thread."""
        ids = os.environ["CONTENDER_TOKEN_IDS"].split(",")
        self.tokens = [np.array([int(token_id)], dtype=np.int32) for token_id in ids]
        self.delay_s = float(os.environ.get("CONTENDER_STEP_DELAY_MS", "0")) / 1000
        self.arrived: deque[Stream] = deque()
        self.wake = threading.Event()
        self.closing = False
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Take requests; the thread answers them."""
        for request in requests:
            stream = Stream(request)
            if stream.left < 1:
                stream.fail("'request_output_len' must be at least 1.")
            else:
                self.arrived.append(stream)
        self.wake.set()

    def run(self) -> None:
        """Step after step, paced as the null engine of openai_bls is."""
        active: list[Stream] = []
        due = time.monotonic()
        while True:
            self.wake.clear()
            while self.arrived:
                active.append(self.arrived.popleft())
            if self.closing:
                break
            now = time.monotonic()
            if not active:
                # At once with the first request, and no steps to make up for.
                self.wake.wait()
                due = max(due, time.monotonic())
            elif now < due:
                self.wake.wait(due - now)
            else:
                due = due + self.delay_s if now - due < 10 * self.delay_s else now + self.delay_s
                active = [stream for stream in active if stream.step(self.tokens)]
        for stream in active:
            stream.fail("The model is being unloaded.")

    def finalize(self) -> None:
        """Stop the thread. Triton unloads a model when its requests have ended."""
        self.closing = True
        self.wake.set()
        self.thread.join()
