"""Names of tensors that a model does not take: layers of another model, adapters, and wrappers' prefixes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_bls.builder.checkpoint.tensor_names import lora_tensors, problem_of_missing, surplus_layers

STACKS = st.sampled_from(["model.layers.", "transformer.h.", "h.", "gpt_neox.layers.", "language_model.model.layers."])
OTHER_STACKS = st.sampled_from(["vision_model.model.layers.", "mtp.layers.", "model.visual.blocks.", "encoder.layer."])
DENSE = ("self_attn.q_proj.weight", "mlp.up_proj.weight", "norm.weight")
SPARSE = ("self_attn.q_proj.weight", "mlp.experts.0.up_proj.weight", "norm.weight")
EXTRAS = st.sets(
    st.sampled_from(
        ["attn.bias", "attn.masked_bias", "self_attn.q_proj.bias", "self_attn.k_scale", "self_attn.rotary_emb.inv_freq"]
    )
)
OUTSIDE = ("model.embed_tokens.weight", "lm_head.weight")
WORDS = st.lists(st.text("ab_xyz", min_size=1, max_size=8), min_size=1, max_size=3)


@given(stack=STACKS, other=OTHER_STACKS, extras=EXTRAS, kept=st.integers(1, 4), more=st.integers(0, 3), data=st.data())
def test_layers_of_another_model(
    stack: str, other: str, extras: set[str], kept: int, more: int, data: st.DataObject
) -> None:
    """Tensors that the model leaves out in every layer make none surplus, nor do other stacks."""
    kinds = data.draw(st.lists(st.sampled_from([DENSE, SPARSE]), min_size=kept + more, max_size=kept + more))
    # A kind of layer that the model has nowhere is for nobody to know.
    kinds = [*kinds[:kept], *(kinds[number % kept] for number in range(more))]
    used = {f"{stack}{number}.{rest}" for number, kind in enumerate(kinds[:kept]) for rest in kind} | {*OUTSIDE}
    unused = {f"{stack}{number}.{rest}" for number in range(kept, kept + more) for rest in kinds[number]}
    unused |= {f"{stack}{number}.{extra}" for number in range(kept + more) for extra in extras}
    unused |= {f"{other}{number}.{rest}" for number in range(8) for rest in (*DENSE, *SPARSE)}
    unused |= {f"{stack}{kept + more}.one.weight"}
    assert surplus_layers(unused, used | unused, {}) == list(range(kept, kept + more))


def test_layers_that_predict_further_tokens() -> None:
    names = {f"model.layers.{number}.{rest}" for number in range(3) for rest in DENSE}
    unused = {name for name in names if ".2." in name}
    config = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    assert surplus_layers(unused, names, config) == []
    assert surplus_layers(unused, names, {"text_config": config}) == []
    assert surplus_layers(unused, names, {"num_hidden_layers": 2}) == [2]


@given(words=WORDS, lost=st.sets(st.sampled_from(DENSE)), extra=st.booleans())
def test_a_prefix_that_names_share(words: list[str], lost: set[str], extra: bool) -> None:
    prefix = ".".join([*words, ""])
    wanted = {f"model.layers.{number}.{rest}" for number in range(3) for rest in DENSE}
    names = {prefix + name for name in wanted if not name.endswith(tuple(lost))} | ({"step"} if extra else set())
    found = problem_of_missing(wanted, names)
    assert found is not None
    assert (repr(prefix) in found) == (len(lost) < 2)


@given(
    prefix=st.sampled_from(["", "base_model.model."]),
    rest=st.sampled_from(["lora_A.weight", "lora_B.default.weight", "lora_embedding_A", "base_layer.weight"]),
)
def test_an_adapter_among_the_weights(prefix: str, rest: str) -> None:
    name = f"{prefix}model.layers.0.self_attn.q_proj.{rest}"
    assert lora_tensors([name, "model.norm.weight"]) == [name]
    found = problem_of_missing({"model.layers.0.self_attn.q_proj.weight"}, {name})
    assert found is not None
    assert "merge_and_unload" in found


def test_names_that_only_look_like_an_adapters() -> None:
    assert lora_tensors(["model.lora_Alpha.weight", "blocks.0.w_lora.lora.0.weight", "base_layers.weight"]) == []
    assert problem_of_missing((), {"model.lora_A.weight"}) is None
