"""Guard: refuses some words, takes e-mail addresses out of requests and answers, counts the tokens of each user."""

import json
import re
from collections import Counter
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")


def redacted(value: Any) -> Any:
    """JSON without e-mail addresses, in whatever field they are."""
    if isinstance(value, dict):
        return {name: redacted(item) for name, item in value.items()}
    if isinstance(value, list):
        return [redacted(item) for item in value]
    return EMAIL.sub("[e-mail]", value) if isinstance(value, str) else value


class TritonPythonModel:
    """Answers {} (go on), {"request": ...} or {"answer": ...} (go on with this), or {"error": ...}."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the expression of blocked words."""
        self.blocked = re.compile(json.loads(args["model_config"])["parameters"]["blocked"]["string_value"], re.I)
        self.tokens: Counter[str] = Counter()

    def before(self, question: dict[str, Any]) -> dict[str, Any]:
        """The engine has not seen the request yet."""
        if self.blocked.search(json.dumps(question["request"], ensure_ascii=False)):
            return {"error": {"message": "This is not talked about here.", "code": "blocked_word", "status": 403}}
        return {"request": redacted(question["request"])}

    def after(self, question: dict[str, Any]) -> dict[str, Any]:
        """The whole answer is there; if it was streamed, its client has it already."""
        user = question["request"].get("user") or "nobody"
        self.tokens[user] += question["usage"]["total_tokens"]
        pb_utils.Logger.log_info(f"{user} has used {self.tokens[user]} tokens")
        return {} if question["stream"] or question["answer"] is None else {"answer": redacted(question["answer"])}

    def answer(self, request: Any) -> Any:
        """One JSON object for another."""
        question = json.loads(pb_utils.get_input_tensor_by_name(request, "request").as_numpy()[0])
        said = self.before(question) if question["hook"] == "before" else self.after(question)
        return pb_utils.InferenceResponse([pb_utils.Tensor("response", np.array([json.dumps(said).encode()], object))])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request."""
        return [self.answer(request) for request in requests]
