"""Triton's gRPC: pip install 'tritonclient[grpc]'."""

import json
import queue

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "stream": True}
tensor = InferInput("request", [1], "BYTES")
tensor.set_data_from_numpy(np.array([json.dumps(body).encode()], dtype=np.object_))

results: queue.Queue = queue.Queue()
# Without `with` the channel is closed while the interpreter ends, which may wait for a thread that has gone.
with InferenceServerClient("localhost:8001") as client:
    client.start_stream(lambda result, error: results.put((result, error)))
    client.async_stream_infer("openai_bls", [tensor], enable_empty_final_response=True)
    while True:
        result, error = results.get()
        if error is not None:
            raise error
        response = result.get_response()
        if response.outputs:
            chunk = json.loads(result.as_numpy("response")[0])
            print(chunk["choices"][0]["delta"].get("content") or "", end="", flush=True)
        if response.parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()
print()
