"""Guard: blocks a list of words, redacts e-mail addresses in both directions, counts the tokens of each user."""

import json
import re
from collections import Counter

import numpy as np
import triton_python_backend_utils as pb_utils

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")


def redacted(value):
    """`value` without e-mail addresses, in whatever field of it."""
    if isinstance(value, str):
        return EMAIL.sub("[e-mail]", value)
    if isinstance(value, list):
        return [redacted(item) for item in value]
    return {name: redacted(item) for name, item in value.items()} if isinstance(value, dict) else value


class TritonPythonModel:
    """Answers {} (go on), {"request": ...} or {"answer": ...} (go on with this), or {"error": ...}."""

    def initialize(self, args):
        words = json.loads(args["model_config"])["parameters"]["blocked_words"]["string_value"]
        self.blocked = re.compile("|".join(map(re.escape, words.split(","))), re.IGNORECASE)
        self.tokens = Counter()

    def before(self, question):
        if self.blocked.search(json.dumps(question["request"], ensure_ascii=False)):
            return {"error": {"message": "This is not talked about here.", "code": "blocked_word", "status": 403}}
        return {"request": redacted(question["request"])}

    def after(self, question):
        user = question["request"].get("user") or "nobody"
        self.tokens[user] += (question["usage"] or {}).get("total_tokens", 0)
        pb_utils.Logger.log_info(f"{user} has used {self.tokens[user]} tokens")
        # What has been streamed cannot be changed.
        return {} if question["stream"] or question["answer"] is None else {"answer": redacted(question["answer"])}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        question = json.loads(pb_utils.get_input_tensor_by_name(request, "request").as_numpy()[0])
        said = self.before(question) if question["hook"] == "before" else self.after(question)
        text = np.array([json.dumps(said).encode()], dtype=np.object_)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("response", text)])
