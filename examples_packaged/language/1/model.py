"""Language of a text by py3langid, whose package carries its model: the probabilities of 97 languages."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from py3langid.langid import MODEL_FILE, LanguageIdentifier


class TritonPythonModel:
    """Probabilities of the languages of each text of a batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model of the package."""
        self.identifier = LanguageIdentifier.from_pickled_model(MODEL_FILE, norm_probs=True)
        self.labels = sorted(self.identifier.nb_classes)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request."""
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0]
            ranks = [dict(self.identifier.rank(text.decode())) for text in texts]
            scores = np.array([[rank[label] for label in self.labels] for rank in ranks], np.float32)
            labels = np.array([[label.encode() for label in self.labels]] * len(texts), np.object_)
            outputs = [pb_utils.Tensor("scores", scores), pb_utils.Tensor("labels", labels)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
