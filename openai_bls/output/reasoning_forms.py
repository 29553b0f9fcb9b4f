"""Forms of reasoning by name, and their signs in chat templates."""

from __future__ import annotations

from openai_bls.output.reasoning_parser import Reasoning
from openai_bls.output.tool_parsers.formats import Sign

_THINK = Reasoning("<think>", "</think>")
_COHERE = ("<|START_TEXT|>", "<|START_RESPONSE|>", "<|END_TEXT|>", "<|END_RESPONSE|>")

REASONINGS: dict[str, Reasoning] = {
    "think": _THINK,
    # A text that begins with its thoughts, though the prompt does not say so.
    "deepseek_r1": _THINK._replace(unopened=True),
    "hunyuan_a13b": _THINK._replace(heads=("<answer>",), closers=("</answer>",)),
    # Granite 3.3 as well.
    "ernie45": _THINK._replace(heads=("<response>",), closers=("</response>",)),
    "mistral": Reasoning("[THINK]", "[/THINK]"),
    "seed_oss": Reasoning("<seed:think>", "</seed:think>", also="<seed:cot_budget_reflect>"),
    "reasoning": Reasoning("<reasoning>", "</reasoning>"),
    "hy_v3": Reasoning("<think:opensource>", "</think:opensource>"),
    "minimax_m3": Reasoning("<mm:think>", "</mm:think>"),
    "gemma4": Reasoning("<|channel>thought", "<channel|>", special=frozenset({"<|channel>", "<channel|>"})),
    "granite": Reasoning("Here is my thought process:", "Here is my response:"),
    "apertus": Reasoning("<|inner_prefix|>", "<|inner_suffix|>"),
    "apriel": Reasoning(
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        closers=("[END FINAL RESPONSE]",),
        bare=True,
        unopened=True,
    ),
    "cohere_command": Reasoning(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        heads=_COHERE[:2],
        closers=_COHERE[2:],
        bare=True,
        special=frozenset({"<|START_THINKING|>", "<|END_THINKING|>", *_COHERE}),
    ),
    "kimi_k3": Reasoning(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        heads=("<|open|>response<|sep|>",),
        closers=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        bare=True,
        special=frozenset({"<|open|>", "<|close|>", "<|sep|>"}),
    ),
    "solar_open": Reasoning(
        "<|think|>",
        "<|end|>",
        heads=("<|begin|>assistant<|content|>", "<|begin|>assistant", "<|content|>"),
        closers=("<|end|>",),
        bare=True,
        special=frozenset({"<|begin|>", "<|think|>", "<|content|>", "<|end|>"}),
    ),
    "muse_glimmer": Reasoning(
        " to=self<|message|>",
        "<|eom|>",
        heads=("<|start|>assistant to=user<|message|>", "<|start|>assistant", " to=user<|message|>"),
        closers=("<|eom|>", "<|eot|>"),
        bare=True,
        special=frozenset({"<|start|>", "<|message|>", "<|eom|>", "<|eot|>"}),
    ),
}

# The first that fits counts.
SIGNS: dict[str, tuple[Sign, ...]] = {
    "seed_oss": (Sign(("<seed:think>",)),),
    "mistral": (Sign(("[THINK]", "[/THINK]")),),
    "hy_v3": (Sign(("<think{}>", "':opensource'")),),
    "minimax_m3": (Sign(("<mm:think>", "</mm:think>")),),
    "gemma4": (Sign(("<|channel>", "<channel|>")),),
    "cohere_command": (Sign(("<|START_THINKING|>", "<|END_THINKING|>")),),
    "kimi_k3": (Sign(("<|open|>", "<|close|>", "<|sep|>", "'think'")),),
    "solar_open": (Sign(("<|begin|>assistant", "<|think|>", "<|content|>")),),
    "muse_glimmer": (Sign(("to=self<|message|>", "<|eom|>")),),
    "apertus": (Sign(("<|inner_prefix|>", "<|inner_suffix|>")),),
    "apriel": (Sign(("[BEGIN FINAL RESPONSE]",)),),
    "granite": (Sign(("Here is my thought process:", "Here is my response:")),),
    "hunyuan_a13b": (Sign(("</think>", "<tool_calls>", "func_name1")),),
    # Not MiniMax M2's results of tools.
    "ernie45": (Sign(("<think>", "</think>", "<response>", "</response>"), ("<minimax:tool_call>",)),),
    "think": (Sign(("</think>",), ("<|channel|>",)), Sign(("<think{}>", "</think{}>"))),
    "reasoning": (Sign(("<reasoning>", "</reasoning>")),),
}

ENDING_CALLS = frozenset(
    {
        "hermes", "qwen3_coder", "kimi_k2", "glm", "minimax_m2", "seed_oss", "gemma4", "deepseek_v4",
        "mistral_tekken", "mistral_v11", "mistral_v13",
    }
)  # fmt: skip
"""Forms of calls of which one ends the thoughts that are open, as in the models' references; in others it is a part of
them."""
