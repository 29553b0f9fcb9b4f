"""Tensors of every model, declared once: `config.pbtxt` files are rendered from here, and a test compares them.

Sources: the official `tensorrt_llm`, `preprocessing`, `postprocessing` and `ensemble` templates of tensorrtllm_backend
(names of 0.20 and later); the tensors marked "ours" are additions that foreign clients never need to send.
"""

from __future__ import annotations

import msgspec

from openai_bls.triton_models.tensors.declaration import DataType, Model, Step, Tensor


def _scalar(name: str, data_type: DataType) -> Tensor:
    return Tensor(name, data_type, (1,), optional=True, scalar=True)


def _option(name: str, data_type: DataType, *dims: int) -> Tensor:
    return Tensor(name, data_type, dims or (1,), optional=True)


LOG_PROBS = (Tensor("cum_log_probs", "FP32", (-1,)), Tensor("output_log_probs", "FP32", (-1, -1)))
"""Outputs of log-probabilities, of the engine and of the models around it."""

LOGITS = (Tensor("context_logits", "FP32", (-1, -1)), Tensor("generation_logits", "FP32", (-1, -1, -1)))
"""Outputs of logits: real ones with the C++ backend alone, else the official dummies, zeros of length 1."""

# What the postprocessing of a streamed ensemble needs to decode characters that several responses share: ours.
DECODE_CONTEXT_LENGTH = 16
"""Token ids in `decode_context`."""

TENSORRT_LLM = Model(
    name="tensorrt_llm",
    max_batch_size=64,
    decoupled=True,
    inputs=(
        _option("input_ids", "INT32", -1),
        _scalar("input_lengths", "INT32"),
        # Of encoder-decoder models: what `preprocessing` gives for others changes nothing.
        _option("decoder_input_ids", "INT32", -1),
        _scalar("decoder_input_lengths", "INT32"),
        _scalar("request_output_len", "INT32"),
        _scalar("num_return_sequences", "INT32"),
        _scalar("end_id", "INT32"),
        _scalar("pad_id", "INT32"),
        _option("stop_words_list", "INT32", 2, -1),
        _option("bad_words_list", "INT32", 2, -1),
        _option("embedding_bias", "FP32", -1),
        _scalar("beam_width", "INT32"),
        _scalar("temperature", "FP32"),
        _scalar("runtime_top_k", "INT32"),
        _scalar("runtime_top_p", "FP32"),
        _scalar("runtime_top_p_min", "FP32"),
        _scalar("runtime_top_p_decay", "FP32"),
        _scalar("runtime_top_p_reset_ids", "INT32"),
        _scalar("len_penalty", "FP32"),
        _scalar("early_stopping", "BOOL"),
        _scalar("repetition_penalty", "FP32"),
        _scalar("min_tokens", "INT32"),
        _scalar("min_length", "INT32"),
        _scalar("beam_search_diversity_rate", "FP32"),
        _scalar("presence_penalty", "FP32"),
        _scalar("frequency_penalty", "FP32"),
        _scalar("seed", "UINT64"),
        _scalar("random_seed", "UINT64"),
        _scalar("return_log_probs", "BOOL"),
        _scalar("return_context_logits", "BOOL"),
        _scalar("return_generation_logits", "BOOL"),
        _scalar("return_perf_metrics", "BOOL"),
        _scalar("exclude_input_in_output", "BOOL"),
        _scalar("stop", "BOOL"),
        _scalar("streaming", "BOOL"),
        _scalar("lora_task_id", "UINT64"),
        _option("guided_decoding_guide_type", "STRING", 1),
        _option("guided_decoding_guide", "STRING", 1),
    ),
    outputs=(
        Tensor("output_ids", "INT32", (-1, -1)),
        Tensor("sequence_length", "INT32", (-1,)),
        Tensor("batch_index", "INT32", (1,)),
        Tensor("sequence_index", "INT32", (1,)),
        *LOG_PROBS,
        *LOGITS,
        Tensor("decode_context", "INT32", (-1,)),
        Tensor("decode_final", "BOOL", (1,)),
    ),
    parameters={"exclude_input_in_output": "true"},
    comment="The engine. Its kind is read from 1/engine.json, which build/engine.py writes.",
)

PREPROCESSING = Model(
    name="preprocessing",
    max_batch_size=64,
    inputs=(
        # Optional, as each input of an ensemble is: without one that is required, no step of it ever begins.
        _option("QUERY", "STRING", 1),
        _option("REQUEST_OUTPUT_LEN", "INT32", 1),
        _option("BAD_WORDS_DICT", "STRING", -1),
        _option("STOP_WORDS_DICT", "STRING", -1),
        _option("EMBEDDING_BIAS_WORDS", "STRING", -1),
        _option("EMBEDDING_BIAS_WEIGHTS", "FP32", -1),
        _option("END_ID", "INT32", 1),
        _option("PAD_ID", "INT32", 1),
        # A `PromptRequest` in MessagePack, and the `PromptResult`, for openai_bls by BLS: ours.
        _option("PROMPT_REQUEST", "STRING", 1),
    ),
    outputs=(
        Tensor("INPUT_ID", "INT32", (-1,)),
        Tensor("REQUEST_INPUT_LEN", "INT32", (1,)),
        Tensor("DECODER_INPUT_ID", "INT32", (-1,)),
        Tensor("REQUEST_DECODER_INPUT_LEN", "INT32", (1,)),
        Tensor("BAD_WORDS_IDS", "INT32", (2, -1)),
        Tensor("STOP_WORDS_IDS", "INT32", (2, -1)),
        Tensor("EMBEDDING_BIAS", "FP32", (-1,)),
        Tensor("REQUEST_OUTPUT_LEN", "INT32", (-1,)),
        Tensor("OUT_END_ID", "INT32", (1,)),
        Tensor("OUT_PAD_ID", "INT32", (1,)),
        # Of prompts with images and prompt tables, and for others left out, officially too.
        Tensor("OUT_PROMPT_TABLE_EXTRA_IDS", "UINT64", (-1,)),
        Tensor("PIXEL_VALUES", "FP16", (-1, -1, -1, -1)),
        Tensor("ASPECT_RATIO_IDS", "INT64", (-1,)),
        Tensor("ASPECT_RATIO_MASK", "INT64", (-1, -1)),
        Tensor("CROSS_ATTENTION_MASK", "INT64", (-1, -1, -1)),
        Tensor("IMAGE_SIZES", "INT64", (-1, 2)),
        Tensor("IS_VIDEO_INPUT", "BOOL", (1,)),
        Tensor("PROMPT_RESULT", "STRING", (1,)),
    ),
    comment="Chat template and tokenization.",
)

PASSED_ON = {tensor.name.upper(): tensor for tensor in (*LOG_PROBS, *LOGITS)}
"""Inputs of `postprocessing` that come out unchanged, as `OUT_<name>`: those of releases up to 0.16."""

POSTPROCESSING = Model(
    name="postprocessing",
    max_batch_size=64,
    inputs=(
        Tensor("TOKENS_BATCH", "INT32", (-1, -1)),
        _option("SEQUENCE_LENGTH", "INT32", -1),
        # The ids before TOKENS_BATCH in a stream, and whether these are the last: ours.
        _option("DECODE_CONTEXT", "INT32", -1),
        _option("DECODE_FINAL", "BOOL", 1),
        _option("SKIP_SPECIAL_TOKENS", "BOOL", 1),
        *(msgspec.structs.replace(tensor, name=name, optional=True) for name, tensor in PASSED_ON.items()),
    ),
    outputs=(
        Tensor("OUTPUT", "STRING", (-1,)),
        *(msgspec.structs.replace(tensor, name=f"OUT_{name}") for name, tensor in PASSED_ON.items()),
    ),
    comment="Detokenization, for the ensemble and direct users; openai_bls detokenizes by itself.",
)

# JSON text, as one element or (messages, tools) one element per item.
JSON_INPUTS = (
    "messages",
    "tools",
    "tool_choice",
    "response_format",
    "stream_options",
    "logit_bias",
    "chat_template_kwargs",
    "metadata",
    "structured_outputs",
    "guided_json",
    "guided_choice",
    "stop_token_ids",
    "input",
    "tokens",
    "reasoning",
)

OPENAI_BLS = Model(
    name="openai_bls",
    max_batch_size=0,
    decoupled=True,
    inputs=(
        _option("request", "STRING", 1),
        _option("endpoint", "STRING", 1),
        _option("prompt", "STRING", -1),
        _option("stop", "STRING", -1),
        _option("bad_words", "STRING", -1),
        *(_option(name, "STRING", -1) for name in JSON_INPUTS),
    ),
    outputs=(Tensor("response", "STRING", (1,)),),
    parameters={
        "http_host": "127.0.0.1",
        "http_port": "9000",
        "model_aliases": "openai_bls",
        "max_concurrent_requests": "4096",
    },
    comment="The OpenAI API, on Triton's endpoints and on /v1. Every scalar field of a request is a request parameter.",
)

# The name of an input of `ensemble` and `tensorrt_llm_bls` → tensorrt_llm's, for those that pass through unchanged.
PASSED_THROUGH = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "min_length": "min_length",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "random_seed": "random_seed",
    "seed": "seed",
    "num_return_sequences": "num_return_sequences",
    "beam_width": "beam_width",
    "stream": "streaming",
    "return_log_probs": "return_log_probs",
    "return_context_logits": "return_context_logits",
    "return_generation_logits": "return_generation_logits",
    "exclude_input_in_output": "exclude_input_in_output",
    "guided_decoding_guide_type": "guided_decoding_guide_type",
    "guided_decoding_guide": "guided_decoding_guide",
}


# Names of the official LLM API model (all_models/llmapi) → those of `tensorrt_llm_bls`.
LLMAPI_NAMES = {
    "streaming": "stream",
    "sampling_param_best_of": "beam_width",
    "sampling_param_max_tokens": "max_tokens",
    "sampling_param_temperature": "temperature",
    "sampling_param_top_k": "top_k",
    "sampling_param_top_p": "top_p",
    "sampling_param_frequency_penalty": "frequency_penalty",
    "sampling_param_presence_penalty": "presence_penalty",
    "sampling_param_seed": "seed",
    "sampling_param_exclude_input_from_output": "exclude_input_in_output",
    "sampling_param_return_perf_metrics": "return_perf_metrics",
}


def _text_inputs(engine: Model) -> tuple[Tensor, ...]:
    """Inputs of `ensemble` and `tensorrt_llm_bls` around `engine`; those that it lacks are left out.

    All are optional: Triton counts the required ones that a request has and does not look which, an ensemble waits for
    them for ever, and a model refuses by name what it lacks.
    """
    by_name = {tensor.name: tensor for tensor in engine.inputs}
    passed_through = [
        _option(outer, by_name[inner].data_type, 1) for outer, inner in PASSED_THROUGH.items() if inner in by_name
    ]
    return (
        _option("text_input", "STRING", 1),
        _option("max_tokens", "INT32", 1),
        _option("bad_words", "STRING", -1),
        _option("stop_words", "STRING", -1),
        _option("embedding_bias_words", "STRING", -1),
        _option("embedding_bias_weights", "FP32", -1),
        _option("end_id", "INT32", 1),
        _option("pad_id", "INT32", 1),
        *passed_through,
    )


_TEXT_OUTPUTS = (
    Tensor("text_output", "STRING", (-1,)),
    Tensor("batch_index", "INT32", (1,)),
    Tensor("sequence_index", "INT32", (1,)),
    # Left out of a response that the engine sends without them.
    *LOG_PROBS,
)


def ensemble(name: str, engine: Model = TENSORRT_LLM) -> Model:
    """The official ensemble around `engine`, whose tensors it passes on; those that `engine` lacks are left out."""
    inputs = _text_inputs(engine)
    names = {tensor.name for tensor in inputs}
    passed_through = {outer: inner for outer, inner in PASSED_THROUGH.items() if outer in names}
    outputs = {tensor.name for tensor in engine.outputs}
    context: dict[str, str] = {name: f"_{name}" for name in sorted(outputs & {"decode_context", "decode_final"})}
    logits = [tensor for tensor in LOGITS if tensor.name in outputs]
    return Model(
        name=name,
        max_batch_size=64,
        inputs=inputs,
        outputs=(*_TEXT_OUTPUTS, *logits),
        steps=(
            Step(
                "preprocessing",
                {
                    "QUERY": "text_input",
                    "REQUEST_OUTPUT_LEN": "max_tokens",
                    "BAD_WORDS_DICT": "bad_words",
                    "STOP_WORDS_DICT": "stop_words",
                    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
                    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
                    "END_ID": "end_id",
                    "PAD_ID": "pad_id",
                },
                {
                    "INPUT_ID": "_input_id",
                    "REQUEST_INPUT_LEN": "_input_length",
                    "BAD_WORDS_IDS": "_bad_words",
                    "STOP_WORDS_IDS": "_stop_words",
                    "EMBEDDING_BIAS": "_embedding_bias",
                    "REQUEST_OUTPUT_LEN": "_output_length",
                    "OUT_END_ID": "_end_id",
                    "OUT_PAD_ID": "_pad_id",
                },
            ),
            Step(
                "tensorrt_llm",
                {
                    "input_ids": "_input_id",
                    "input_lengths": "_input_length",
                    "request_output_len": "_output_length",
                    "bad_words_list": "_bad_words",
                    "stop_words_list": "_stop_words",
                    "embedding_bias": "_embedding_bias",
                    "end_id": "_end_id",
                    "pad_id": "_pad_id",
                    **{inner: outer for outer, inner in passed_through.items()},
                },
                {
                    "output_ids": "_tokens",
                    "sequence_length": "_sequence_length",
                    "batch_index": "batch_index",
                    "sequence_index": "sequence_index",
                    "cum_log_probs": "cum_log_probs",
                    "output_log_probs": "output_log_probs",
                    **{tensor.name: tensor.name for tensor in logits},
                    **context,
                },
            ),
            Step(
                "postprocessing",
                {
                    "TOKENS_BATCH": "_tokens",
                    "SEQUENCE_LENGTH": "_sequence_length",
                    **{outer.upper(): inner for outer, inner in context.items()},
                },
                {"OUTPUT": "text_output"},
            ),
        ),
        comment="The official ensemble: text_input → text_output, raw prompts, no chat template.",
    )


ENSEMBLE = ensemble("ensemble")

_OFFICIAL_INPUTS = {
    tensor.name: tensor for tensor in (*_text_inputs(TENSORRT_LLM), _option("return_perf_metrics", "BOOL"))
}

TENSORRT_LLM_BLS = Model(
    name="tensorrt_llm_bls",
    max_batch_size=64,
    decoupled=True,
    inputs=(
        *_OFFICIAL_INPUTS.values(),
        _option("return_num_input_tokens", "BOOL"),
        _option("return_num_output_tokens", "BOOL"),
        # Of the LLM API model.
        *(msgspec.structs.replace(_OFFICIAL_INPUTS[same], name=name) for name, same in LLMAPI_NAMES.items()),
        _option("sampling_param_stop", "STRING", -1),
        # Of vLLM's backend.
        _option("sampling_parameters", "STRING"),
        _option("stop", "BOOL"),
        _option("return_finish_reason", "BOOL"),
        _option("return_stop_reason", "BOOL"),
        _option("return_cumulative_logprob", "BOOL"),
    ),
    # All but the first three are sent only where they were asked for.
    outputs=(
        *_TEXT_OUTPUTS,
        Tensor("num_input_tokens", "INT32", (1,)),
        Tensor("num_output_tokens", "INT32", (1,)),
        Tensor("finish_reason", "STRING", (-1,)),
        Tensor("stop_reason", "STRING", (-1,)),
        Tensor("cumulative_logprob", "FP32", (-1,)),
    ),
    comment="text_input → text_output under the official names, on the pipeline of openai_bls.",
)


def tensorrt_llm_bls(engine: Model) -> Model:
    """`tensorrt_llm_bls` for `engine`: a separate model, as decoupled as the engine. The C++ backend has tensors that
    only an ensemble passes on (beam search, logits), and around it that is what it is."""
    if engine.backend != TENSORRT_LLM.backend:
        return ensemble(TENSORRT_LLM_BLS.name, engine)
    return msgspec.structs.replace(TENSORRT_LLM_BLS, decoupled=engine.decoupled)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        PREPROCESSING,
        TENSORRT_LLM,
        POSTPROCESSING,
        OPENAI_BLS,
        ENSEMBLE,
        TENSORRT_LLM_BLS,
    )
}
