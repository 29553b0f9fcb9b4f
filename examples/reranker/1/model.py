"""Relevance by shared words: how much of the query stands in words that a passage has. It knows no meanings."""

import re
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def words(text: str) -> set[str]:
    """The words of a text, each once."""
    return set(re.findall(r"\w+", text.lower()))


def relevance(query: str, passage: str) -> float:
    """From 0 to 1: the share of the query's letters that stand in words which the passage has, too."""
    wanted = words(query)
    found = sum(map(len, wanted & words(passage)))
    return found / max(1, sum(map(len, wanted)))


class TritonPythonModel:
    """One score for each pair of a batch."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request."""
        responses = []
        for request in requests:
            queries, passages = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()[:, 0] for name in ("QUERY", "PASSAGE")
            )
            pairs = zip(queries, passages, strict=True)
            scores = np.array([[relevance(query.decode(), passage.decode())] for query, passage in pairs], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RELEVANCE", scores)]))
        return responses
