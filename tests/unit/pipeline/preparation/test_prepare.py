from __future__ import annotations

import asyncio
import json
import queue
import threading
from typing import Any

import jsonschema
import pytest

from openai_bls.core.engine_types import EngineInfo, Grammar, SamplingParams
from openai_bls.core.errors import InvalidRequestError
from openai_bls.core.keys.turns import FairExecutor
from openai_bls.core.media import MediaPrompt
from openai_bls.core.request import ValidRequest
from openai_bls.engines.capabilities import ALL_FIELDS
from openai_bls.output.detect import ModelFormats, detect
from openai_bls.pipeline.models.registry import ServedModel, Target
from openai_bls.pipeline.preparation import checks, constraints, prepare
from openai_bls.pipeline.preparation.prompts import Prompts
from tests.unit.core_support import EOS, FakeEngineClient, FakePrompts, chat, completion, engine_info, tiny_detokenizers
from tests.unit.output.structured import driving

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
OTHER = {"type": "function", "function": {"name": "g", "strict": True}}
NAMED = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
HERMES = detect(None, tool_call_parser="hermes", reasoning_parser="none")
THINKING = detect(None, tool_call_parser="hermes", reasoning_parser="think")


def model(formats: ModelFormats = HERMES, info: EngineInfo | None = None) -> ServedModel:
    detokenizers = tiny_detokenizers()
    return ServedModel(info or engine_info(), FakeEngineClient(), FakePrompts(), detokenizers, formats)


def without(*fields: str) -> ServedModel:
    return model(info=engine_info(supported=tuple(f for f in ALL_FIELDS if f not in fields)))


def constraint(request: ValidRequest, formats: ModelFormats = HERMES, tail: str = "") -> Grammar | None:
    served = model(formats)
    found = constraints.wanted(request, served, tail)
    return None if found is None else constraints.constraint(found, served)


@pytest.mark.parametrize(
    ("request_", "field", "param"),
    [
        (chat(min_tokens=1), "min_tokens", "min_tokens"),
        (chat(allowed_token_ids=[1]), "allowed_token_ids", "allowed_token_ids"),
        (chat(bad_words=["x"]), "bad_words", "bad_words"),
        (chat(prediction={"type": "content", "content": "x"}), "prediction", "prediction"),
        (chat(logprobs=True), "logprobs", "logprobs"),
        (completion(logprobs=0, echo=True), "prompt_logprobs", "logprobs"),
        (completion(best_of=2), "logprobs", "best_of"),
        (chat(response_format={"type": "json_object"}), "grammar", "response_format"),
        (chat(guided_regex="a+"), "grammar", "guided_regex"),
        (chat(tools=[TOOL], tool_choice="required"), "grammar", "tool_choice"),
        (chat(tools=[TOOL, OTHER], tool_choice=ALLOWED), "grammar", "tool_choice"),
        (chat(tools=[OTHER]), "grammar", "tools[0].function.strict"),
    ],
)
def test_what_the_engine_does_not_honour_is_refused_by_name(request_: ValidRequest, field: str, param: str) -> None:
    checks.check_supported(request_, model())
    with pytest.raises(InvalidRequestError) as info:
        checks.check_supported(request_, without(field))
    assert (info.value.param, info.value.code) == (param, "unsupported_parameter")


def test_neutral_sampling_is_no_reason_to_refuse() -> None:
    request = chat(repetition_penalty=1, presence_penalty=0, frequency_penalty=0, logit_bias={}, min_p=0, top_k=-1)
    assert prepare.sampling(request, model(info=engine_info(supported=())), 0) == SamplingParams()


def test_limits_of_log_probabilities_and_of_the_vocabulary() -> None:
    small = model(info=engine_info(max_logprobs=3, vocab_size=10))
    checks.check_supported(chat(logprobs=True, top_logprobs=3, logit_bias={"9": 1}), small)
    for request, param in (
        (chat(logprobs=True, top_logprobs=4), "top_logprobs"),
        (completion(logprobs=4), "logprobs"),
        (chat(logit_bias={"10": 1}), "logit_bias"),
    ):
        with pytest.raises(InvalidRequestError) as info:
            checks.check_supported(request, small)
        assert info.value.param == param


def test_tools_need_a_form_that_is_known() -> None:
    unknown = model(ModelFormats())
    checks.check_supported(chat(tools=[TOOL], tool_choice="none"), unknown)
    with pytest.raises(InvalidRequestError) as info:
        checks.check_supported(chat(tools=[TOOL]), unknown)
    assert info.value.param == "tools"


OLD_TRTLLM = engine_info(
    engine="tensorrt_llm",
    grammar_dialect="guided_decoding",
    version="tensorrt_llm 0.20.0",
    grammar_backend="xgrammar",
    grammar_kinds=("json_schema",),
)


@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({"tools": [TOOL, OTHER], "tool_choice": "required"}, '[{"name": "f", "parameters": {}}]'),
        ({"tools": [TOOL, OTHER], "tool_choice": NAMED}, '[{"name": "f", "parameters": {}}]'),
        ({"tools": [TOOL], "response_format": JSON_SCHEMA}, '[{"name": "f", "parameters": {}}]'),
    ],
)
def test_forced_calls_without_structural_tags_are_a_json_array(fields: dict[str, Any], calls: str) -> None:
    old = model(THINKING, OLD_TRTLLM)
    request = chat(**fields)
    checks.check_supported(request, old)
    found = constraints.wanted(request, old, "<think>\n\n</think>\n\n")
    assert found is not None
    made = constraints.constraint(found, old)
    assert made.kind == "json_schema"
    jsonschema.validate(json.loads(calls), json.loads(made.text))
    written = constraints.tool_format(request, old)
    assert written is not None
    events = written.parsers([TOOL, OTHER])().push(calls)
    assert [type(event).__name__ for event in events] == ["ToolCallStart", "ToolCallArguments"]
    # Free text before the array cannot be allowed there.
    with pytest.raises(InvalidRequestError, match="structural tags"):
        constraints.constraint(constraints.wanted(request, old, "<think>\n") or found, old)


def test_calls_are_not_checked_without_structural_tags() -> None:
    old = model(info=OLD_TRTLLM)
    checks.check_supported(chat(tools=[TOOL]), old)
    assert constraints.tool_format(chat(tools=[TOOL]), old) is HERMES.tool_format
    with pytest.raises(InvalidRequestError) as info:
        checks.check_supported(chat(tools=[OTHER]), old)
    assert (info.value.param, info.value.code) == ("tools[0].function.strict", "unsupported_parameter")


def test_forced_calls_in_a_style_that_the_engine_lacks_are_a_json_array() -> None:
    info = engine_info(
        engine="tensorrt_llm",
        grammar_dialect="guided_decoding",
        version="tensorrt_llm 1.2.1",
        grammar_backend="xgrammar",
        grammar_kinds=("json_schema", "regex", "ebnf", "structural_tag"),
    )
    request = chat(tools=[TOOL, OTHER], tool_choice="required")
    for name, written in (("qwen3_coder", "qwen3_coder"), ("glm", "json_array"), ("minimax_m2", "json_array")):
        served = model(detect(None, name), info)
        checks.check_supported(request, served)
        found = constraints.tool_format(request, served)
        assert found is not None
        assert found.name == written
        wanted = constraints.wanted(request, served, "")
        assert wanted is not None
        assert constraints.constraint(wanted, served).text
    with pytest.raises(InvalidRequestError) as refused:
        checks.check_supported(chat(tools=[OTHER]), model(detect(None, "glm"), info))
    assert refused.value.param == "tools[0].function.strict"


def test_the_engines_request() -> None:
    served = model(info=engine_info(lora_names=("poet",), sampling_defaults=SamplingParams(repetition_penalty=1.1)))
    request = completion(
        logprobs=2,
        echo=True,
        min_tokens=3,
        max_tokens=9,
        presence_penalty=0.5,
        logit_bias={"7": -1},
        stop_token_ids=[4],
    )
    grammar = Grammar("regex", "a")
    prompts = Prompts([[1, 2]], ((5, 6),), (7, 8), "")
    made = prepare.generation_request(request, Target(served, "poet"), 0, [1, 2], prompts, grammar, "alice")
    assert (made.prompt_token_ids, made.max_tokens, made.min_tokens) == ([1, 2], 9, 3)
    assert (made.logprobs, made.prompt_logprobs) == (2, 2)
    assert made.bad_words == ((5, 6),)
    assert made.stop_token_ids == (4, EOS)
    assert made.sampling == SamplingParams(repetition_penalty=1.1, presence_penalty=0.5, logit_bias={7: -1.0})
    assert (made.lora_name, made.grammar, made.prediction) == ("poet", grammar, (7, 8))
    assert made.owner == "alice"
    free = prepare.generation_request(request, Target(served, "poet"), 0, [1, 2], prompts, None, "alice")
    assert free.owner == ""  # which costs bytes, and is for grammars and images
    media = MediaPrompt((), "see #", (1,))
    seen = prepare.generation_request(
        request, Target(served, "poet"), 0, [1, 2], prompts._replace(media=media), None, "alice"
    )
    assert seen.owner == "alice"


def test_nothing_is_constrained_unless_asked_for() -> None:
    for request in (chat(), completion(), chat(tools=[TOOL]), chat(tools=[OTHER], tool_choice="none")):
        assert constraint(request, THINKING) is None


def test_grammars_take_turns_by_key_and_those_of_clients_that_left_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: queue.Queue[str] = queue.Queue()
    gate = threading.Event()

    def read(request: ValidRequest, model: ServedModel, tail: str) -> None:
        begun.put(tail)
        assert gate.wait(60)

    monkeypatch.setattr(constraints, "constrained", read)
    monkeypatch.setattr(constraints, "_GRAMMARS", FairExecutor(1, "test"))

    async def ask() -> None:
        request = chat(response_format={"type": "json_object"})
        asked = [("alice", "alice 1"), ("alice", "left"), ("alice", "alice 2"), ("bob", "bob")]
        tasks = {}
        for key, tail in asked:
            tasks[tail] = asyncio.create_task(constraints.constrain(request, model(), tail, key))
            await asyncio.sleep(0)
        tasks["left"].cancel()
        await asyncio.gather(tasks["left"], return_exceptions=True)
        gate.set()
        await asyncio.gather(*(task for tail, task in tasks.items() if tail != "left"))

    asyncio.run(ask())
    assert [begun.get_nowait() for _ in range(3)] == ["alice 1", "bob", "alice 2"]
    assert begun.empty()


def accepts(grammar: Grammar | None, text: str) -> bool:
    """Whether `text` is one that the grammar allows."""
    assert grammar is not None
    return driving.accepts(grammar, text)


CALL_F = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
CALL_G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"response_format": JSON_SCHEMA}, ['{"a": 1}'], ['{"b": 1}', "", "hi", CALL_F]),
        ({"tools": [TOOL, OTHER], "tool_choice": "required"}, [CALL_F, CALL_G, f"{CALL_F}\n{CALL_G}"], ["", "hi"]),
        (
            {"tools": [TOOL, OTHER], "tool_choice": "required", "parallel_tool_calls": False},
            [CALL_F, CALL_G],
            [f"{CALL_F}\n{CALL_G}", "hi"],
        ),
        (
            {"tools": [TOOL, OTHER], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            [CALL_G],
            [CALL_F, f"{CALL_G}\n{CALL_G}", "hi"],
        ),
        # Free text, but calls are checked once one of the functions is strict.
        ({"tools": [TOOL, OTHER]}, ["", "hi", CALL_F, f"hi {CALL_G}"], ['<tool_call>\n{"name": "h"', "<tool_call>x"]),
        # One or the other.
        ({"tools": [TOOL], "response_format": JSON_SCHEMA}, ['{"a": 1}', CALL_F], ["hi", "", f'{{"a": 1}}{CALL_F}']),
    ],
)
@pytest.mark.parametrize("thinking", ["no", "open", "may", "off"])
def test_what_the_output_must_match(fields: dict[str, Any], good: list[str], bad: list[str], thinking: str) -> None:
    formats = HERMES if thinking == "no" else THINKING
    tail = {"no": "", "open": "<think>\n", "may": "<|im_start|>assistant\n", "off": "<think>\n\n</think>\n\n"}[thinking]
    grammar = constraint(chat(**fields), formats, tail)
    thought = {"no": "", "open": "I {think</think>\n\n", "may": "<think>I {think</think>\n\n", "off": ""}[thinking]
    for text in good:
        assert accepts(grammar, thought + text), text
    for text in bad:
        assert not accepts(grammar, thought + text), text
    if thinking in ("no", "may", "off"):
        assert accepts(grammar, good[0])
    if thinking == "open":
        # Nothing counts before the thinking is over.
        assert not accepts(grammar, good[-1])


def test_no_call_within_thoughts_goes_unchecked() -> None:
    strict = chat(tools=[TOOL, OTHER])
    grammar = constraint(strict, THINKING, "<think>\n")
    assert accepts(grammar, f"I think.</think>{CALL_F}")
    assert not accepts(grammar, f"I {CALL_F}</think>hi")
    # No call is held, or none ends the thoughts.
    assert accepts(
        constraint(chat(response_format=JSON_SCHEMA), THINKING, "<think>\n"), f'I {CALL_F}</think>{{"a": 1}}'
    )
    other = detect(None, "deepseek_v3", "think")
    assert accepts(constraint(strict, other, "<think>\n"), f"I {CALL_F}</think>hi")
    # TensorRT-LLM before 1.2.1 has no text without certain strings.
    kinds = ("json_schema", "regex", "ebnf", "structural_tag")
    for version, excluded in (("1.2.0", False), ("1.2.1", True)):
        info = engine_info(
            engine="tensorrt_llm",
            grammar_dialect="guided_decoding",
            version=f"tensorrt_llm {version}",
            grammar_backend="xgrammar",
            grammar_kinds=kinds,
        )
        found = constraints.wanted(strict, model(THINKING, info), "<think>\n")
        assert found is not None
        assert ("<tool_call>" in str(found.format["elements"][0])) is excluded


def test_an_answer_that_is_marked_may_have_its_marks() -> None:
    request = chat(response_format=JSON_SCHEMA)
    kimi = detect(None, "none", "kimi_k3")
    think = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    grammar = constraint(request, kimi, think)
    for head in ("", "<|open|>response<|sep|>"):
        assert accepts(grammar, f'hm<|close|>think<|sep|>{head}{{"a": 1}}')
    answer = constraint(request, kimi, '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>')
    assert accepts(answer, '{"a": 1}')
    assert not accepts(answer, 'hm<|close|>think<|sep|>{"a": 1}')


def test_a_schema_that_nothing_honours_is_refused_by_the_requests_field() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "http://example.com/x"}}}
    with pytest.raises(InvalidRequestError) as info:
        constraint(chat(response_format=schema))
    assert info.value.param is not None
    assert info.value.param.startswith("response_format")


def custom(syntax: str, definition: str, name: str = "c") -> dict[str, Any]:
    held = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": name, "format": held}}


FREE = {"type": "custom", "custom": {"name": "t"}}
DEFINITION = "tools[1].custom.format.grammar.definition"
CALL_C = '<tool_call>\n{"name": "c", "arguments": {"input": "%s"}}\n</tool_call>'


def held(request: ValidRequest, served: ServedModel | None = None) -> Grammar | None:
    served = served or model()
    checks.check_supported(request, served)
    found = constraints.constrained(request, served, "")
    return None if found is None else found.grammar


@pytest.mark.parametrize(
    "choice",
    [
        None,
        "required",
        {"type": "custom", "custom": {"name": "c"}},
        {**ALLOWED, "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "c"}}]}},
    ],
)
def test_the_input_of_a_custom_tool_is_held_to_its_grammar(choice: Any) -> None:
    grammar = held(chat(tools=[TOOL, custom("lark", 'start: "a\\n"+'), FREE], tool_choice=choice))
    assert accepts(grammar, CALL_C % "a\\na\\n")
    for text in ("a", "", "b", "a\\na", "a\n"):
        assert not accepts(grammar, CALL_C % text)
    is_forced = choice == "required" or (isinstance(choice, dict) and choice["type"] == "custom")
    assert accepts(grammar, "hi") is not is_forced


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [
        *(("lark", "x: /a/"), ("lark", "start: y"), ("lark", "%import common.NOPE\nstart: /a/"), ("lark", "start: (")),
        *(("lark", "start: start"), ("lark", 'start: %json {"type": "object"}'), ("regex", "("), ("regex", "(?=a)")),
        ("regex", "(((a{100}){100}){100}){100}"),
    ],
)
@pytest.mark.parametrize("formats", [HERMES, detect(None, "qwen3_coder")])
def test_a_grammar_that_cannot_be_held_is_refused_by_its_field(
    formats: ModelFormats, syntax: str, definition: str
) -> None:
    request = chat(tools=[TOOL, custom(syntax, definition)])
    with pytest.raises(InvalidRequestError) as info:
        held(request, model(formats))
    assert (info.value.param, info.value.code) == (DEFINITION, "invalid_grammar")
    # One that is not called is not looked at.
    assert held(chat(tools=[TOOL, custom(syntax, definition)], tool_choice=NAMED), model(formats)) is not None


@pytest.mark.parametrize("choice", [None, "required"])
def test_without_grammars_custom_tools_are_free_text(choice: Any) -> None:
    engine = without("grammar")
    for served in (engine, model(detect(None, "glm"), OLD_TRTLLM), model(info=OLD_TRTLLM)):
        with pytest.raises(InvalidRequestError) as info:
            held(chat(tools=[TOOL, custom("regex", "a")], tool_choice=choice), served)
        assert (info.value.param, info.value.code) == (DEFINITION, "unsupported_parameter")
    assert held(chat(tools=[TOOL, FREE]), engine) is None


def test_xgrammar_holds_a_grammar_in_json_arguments() -> None:
    kinds = ("json_schema", "regex", "ebnf", "structural_tag")
    info = engine_info(
        engine="tensorrt_llm",
        grammar_dialect="guided_decoding",
        version="tensorrt_llm 1.2.1",
        grammar_backend="xgrammar",
        grammar_kinds=kinds,
    )
    made = held(chat(tools=[TOOL, custom("lark", 'start: "(" start ")" | "a\\"b"')]), model(info=info))
    assert made is not None
    assert made.kind == "structural_tag"
    with pytest.raises(InvalidRequestError) as refused:
        held(chat(tools=[TOOL, custom("lark", "start: /a+/")]), model(detect(None, "qwen3_coder"), info))
    assert refused.value.param == DEFINITION


ODD_SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
    {"type": "object", "properties": {"a": {"$ref": "http://example.com/x"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}},
    {"type": "object", "properties": {"a": {"type": "string", "format": "email", "pattern": "(?=a)"}}},
    {"type": "object", "if": {}, "then": {}, "patternProperties": {"(?=a)": {}}},
    {"type": "object", "properties": {"a": {"type": "strange"}}, "required": 1},
]


@pytest.mark.parametrize("schema", ODD_SCHEMAS)
@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "glm", "pythonic"])
def test_a_schema_that_cannot_be_enforced_turns_away_no_request_that_is_not_about_it(
    schema: dict[str, Any], parser: str
) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    served = model(detect(None, parser))
    grammar = held(chat(tools=[odd, custom("regex", "ab"), TOOL]), served)
    if parser == "hermes":
        assert accepts(grammar, '<tool_call>\n{"name": "odd", "arguments": {"a": [1], "b": "x"}}\n</tool_call>')
        assert accepts(grammar, CALL_C % "ab")
        assert not accepts(grammar, CALL_C % "a")
        assert not accepts(grammar, '<tool_call>\n{"name": "odd", "arguments": [1]}\n</tool_call>')
    # One that is strict is still refused, by its field.
    strict = {"type": "function", "function": {"name": "odd", "parameters": schema, "strict": True}}
    with pytest.raises(InvalidRequestError) as info:
        held(chat(tools=[strict, custom("regex", "ab")]), served)
    assert info.value.param == "tools[0].function.parameters"


def test_many_schemas_that_are_too_much_together_are_free() -> None:
    values = [f"{'x' * 50}{at}" for at in range(1_000)]
    schema = {"type": "object", "properties": {"a": {"enum": values}}}
    tools = [{"type": "function", "function": {"name": f"f{at}", "parameters": schema}} for at in range(8)]
    grammar = held(chat(tools=[TOOL, custom("regex", "ab"), *tools]))
    assert accepts(grammar, CALL_C % "ab")
    assert not accepts(grammar, CALL_C % "a")
    assert accepts(grammar, '<tool_call>\n{"name": "f0", "arguments": {"a": "other"}}\n</tool_call>')
