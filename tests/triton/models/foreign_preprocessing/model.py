"""A preprocessing that is not this project's: the official tensors, its own tokenizer, and some faults on demand."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

PADDING = 3


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.folder = Path(parameters["tokenizer_dir"]["string_value"])
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        (text,) = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy()[:, 0].tolist()
        output_length = pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy()
        words = pb_utils.get_input_tensor_by_name(request, "BAD_WORDS_DICT")
        if b"[refuse]" in text:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no, at /secret/path"))
        while b"[hang]" in text and not (self.folder / "released").exists():
            time.sleep(0.01)
        ids = self.tokenizer.encode(text.decode()).ids
        tensors = {
            "INPUT_ID": np.array([ids + [0] * PADDING], np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(ids)]], np.int32),
            "BAD_WORDS_IDS": self.words(words.as_numpy()[0].tolist() if words is not None else []),
            "STOP_WORDS_IDS": self.words([]),
            "EMBEDDING_BIAS": np.zeros((1, 0), np.float32),
            "REQUEST_OUTPUT_LEN": output_length,
            "OUT_END_ID": np.array([[0]], np.int32),
            "OUT_PAD_ID": np.array([[0]], np.int32),
        }
        if b"[outside]" in text:
            tensors["INPUT_ID"] += 1_000_000
        elif b"[length]" in text:
            tensors["REQUEST_INPUT_LEN"] += 100
        elif b"[missing]" in text:
            del tensors["INPUT_ID"]
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])

    def words(self, words: list[bytes]) -> np.ndarray[Any, Any]:
        encoded = [self.tokenizer.encode(word.decode(), add_special_tokens=False).ids for word in words]
        ids = [token for word in encoded for token in word]
        ends = np.cumsum([len(word) for word in encoded]).tolist()
        return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]], np.int32)
