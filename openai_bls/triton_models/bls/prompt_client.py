"""Choice of the client for an engine's preprocessing: the exchange, or BLS calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from openai_bls.transport.ipc.prompts import PromptExchangeClient
from openai_bls.transport.ipc.sockets import address
from openai_bls.triton_models.bls.preprocessing_model import PreprocessingModel
from openai_bls.triton_models.repository.engines import Backend

if TYPE_CHECKING:
    from openai_bls.transport.model_calls import ModelCalls
    from openai_bls.triton_models.bls.prompts import BlsPromptClient

logger = logging.getLogger(__name__)


def prompt_client(
    backend: Backend,
    model: PreprocessingModel | None,
    owner: int,
    model_calls: ModelCalls,
    timeout_s: float,
    vocab_size: Callable[[], int],
) -> PromptExchangeClient | BlsPromptClient:
    """The client of an engine's preprocessing.

    Args:
        backend: the engine's models.
        model: the preprocessing as it is called by BLS; None where it serves the exchange.
        owner: process id of the tritonserver.
        model_calls: calls of models by BLS.
        timeout_s: seconds until a BLS call must be answered.
        vocab_size: size of the engine's vocabulary, known once the engine is there.
    """
    if model is None:
        return PromptExchangeClient(address(backend.preprocessing, owner))
    # Not at the top: it is for renderers of chat templates, which most servers have in `preprocessing` alone.
    from openai_bls.triton_models.bls.prompts import BlsPromptClient, OfficialPromptClient

    logger.info("prompts of %s are prepared by BLS calls of %s", backend.engine, model.name)
    if model.declares("PROMPT_REQUEST", "PROMPT_RESULT"):
        return BlsPromptClient(model, model_calls, timeout_s)
    return OfficialPromptClient(model, model_calls, timeout_s, backend.tokenizer_dir, vocab_size)
