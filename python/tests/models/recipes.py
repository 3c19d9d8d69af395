"""The tiny models of the engine tests and the demo: one recipe per layout class.

`build.py` draws and saves them. A recipe is a configuration in the form of the published
checkpoints plus every tensor by name, so that the engine loads it like any other model. They are
random but *sensitive*: every matrix is drawn at 1.2/sqrt(fan_in), which keeps greedy output varied
and dependent on early tokens. A weaker draw answers the same whatever was loaded, and proves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

VOCABULARY = 512
POSITIONS = 4096
HIDDEN = 128
HEADS = 4
KV_HEADS = 2


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: a shape, and either a fan-in to draw with or a constant."""

    name: str
    shape: tuple[int, ...]
    fan_in: int | None = None
    constant: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """A model: its layout class as the demo prints it, its configuration and its tensors."""

    name: str
    layout: str
    dtype: str
    config: dict[str, Any]
    tensors: tuple[Tensor, ...]
    weights: str = ""
    """Models that differ here only have the same name and shape, and other weights."""


def matrix(name: str, rows: int, columns: int) -> Tensor:
    """A linear weight, stored (out, in) as PyTorch does."""
    return Tensor(f"{name}.weight", (rows, columns), fan_in=columns)


def vector(name: str, length: int, constant: float = 1.0) -> Tensor:
    return Tensor(name, (length,), constant=constant)


def common(architecture: str, model_type: str, dtype: str, **extra: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": dtype,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **extra,
    }


def trunk(
    layers: int, layer: Callable[[int, str], Iterator[Tensor]], norm: float = 1.0
) -> tuple[Tensor, ...]:
    """Embedding, layers, final norm and head, which all five share."""
    tensors = [
        matrix("model.embed_tokens", VOCABULARY, HIDDEN),
        vector("model.norm.weight", HIDDEN, norm),
        matrix("lm_head", VOCABULARY, HIDDEN),
    ]
    for index in range(layers):
        tensors.extend(layer(index, f"model.layers.{index}"))
    return tuple(tensors)


def attention(prefix: str, head: int, query_heads: int = HEADS) -> Iterator[Tensor]:
    yield matrix(f"{prefix}.q_proj", query_heads * head, HIDDEN)
    yield matrix(f"{prefix}.k_proj", KV_HEADS * head, HIDDEN)
    yield matrix(f"{prefix}.v_proj", KV_HEADS * head, HIDDEN)
    yield matrix(f"{prefix}.o_proj", HIDDEN, HEADS * head)


def feed_forward(prefix: str, inner: int) -> Iterator[Tensor]:
    yield matrix(f"{prefix}.gate_proj", inner, HIDDEN)
    yield matrix(f"{prefix}.up_proj", inner, HIDDEN)
    yield matrix(f"{prefix}.down_proj", HIDDEN, inner)


def norms(prefix: str, constant: float, *names: str) -> Iterator[Tensor]:
    for name in names:
        yield vector(f"{prefix}.{name}.weight", HIDDEN, constant)


def llama() -> Recipe:
    """Full attention only: one group, the block-level layout."""
    head, inner, layers = 32, 256, 4

    def layer(_: int, prefix: str) -> Iterator[Tensor]:
        yield from attention(f"{prefix}.self_attn", head)
        yield from feed_forward(f"{prefix}.mlp", inner)
        yield from norms(prefix, 1.0, "input_layernorm", "post_attention_layernorm")

    config = common(
        "LlamaForCausalLM",
        "llama",
        "float32",
        head_dim=head,
        intermediate_size=inner,
        num_hidden_layers=layers,
        hidden_act="silu",
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    )
    return Recipe("llama", "full", "float32", config, trunk(layers, layer))


def llama_twin() -> Recipe:
    """The same name and shape with other weights, which nothing but these tells apart."""
    return replace(llama(), weights="second")


def gemma3() -> Recipe:
    """Five window layers and one full layer: six groups. The window is no multiple of a block, so
    that the oldest block of a window is needed in part."""
    head, inner, layers = 32, 256, 6

    def layer(_: int, prefix: str) -> Iterator[Tensor]:
        yield from attention(f"{prefix}.self_attn", head)
        yield vector(f"{prefix}.self_attn.q_norm.weight", head, 0.0)
        yield vector(f"{prefix}.self_attn.k_norm.weight", head, 0.0)
        yield from feed_forward(f"{prefix}.mlp", inner)
        yield from norms(
            prefix,
            0.0,
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        )

    rope = {"rope_theta": 10000.0, "rope_type": "default"}
    config = common(
        "Gemma3ForCausalLM",
        "gemma3_text",
        "float32",
        head_dim=head,
        intermediate_size=inner,
        num_hidden_layers=layers,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=head,
        sliding_window=192,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        rope_parameters={"sliding_attention": rope, "full_attention": {**rope, "rope_theta": 1e6}},
    )
    return Recipe("gemma3", "window+full", "float32", config, trunk(layers, layer, norm=0.0))


def gpt_oss() -> Recipe:
    """Alternating window and full layers with attention sinks and experts: two groups."""
    head, inner, layers, experts = 64, 128, 4, 4

    def layer(_: int, prefix: str) -> Iterator[Tensor]:
        for projection in attention(f"{prefix}.self_attn", head):
            yield projection
            yield vector(projection.name.removesuffix("weight") + "bias", projection.shape[0], 0.0)
        yield vector(f"{prefix}.self_attn.sinks", HEADS, 0.0)
        yield matrix(f"{prefix}.mlp.router", experts, HIDDEN)
        yield vector(f"{prefix}.mlp.router.bias", experts, 0.0)
        # Expert weights of this family are stored (expert, in, out).
        stacked = f"{prefix}.mlp.experts"
        yield Tensor(f"{stacked}.gate_up_proj", (experts, HIDDEN, 2 * inner), fan_in=HIDDEN)
        yield Tensor(f"{stacked}.gate_up_proj_bias", (experts, 2 * inner))
        yield Tensor(f"{stacked}.down_proj", (experts, inner, HIDDEN), fan_in=inner)
        yield Tensor(f"{stacked}.down_proj_bias", (experts, HIDDEN))
        yield from norms(prefix, 1.0, "input_layernorm", "post_attention_layernorm")

    config = common(
        "GptOssForCausalLM",
        "gpt_oss",
        "float32",
        head_dim=head,
        intermediate_size=inner,
        num_hidden_layers=layers,
        hidden_act="silu",
        attention_bias=True,
        num_local_experts=experts,
        num_experts_per_tok=2,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        rope_parameters={
            "rope_theta": 150000.0,
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": POSITIONS,
            "truncate": False,
        },
    )
    return Recipe("gpt_oss", "window+full", "float32", config, trunk(layers, layer))


def qwen3_next() -> Recipe:
    """Gated delta net and full attention: state groups beside a full one.

    The engine's CPU kernels want bfloat16 and linear heads of 128. `A_log` and `dt_bias` are small
    so that the state decays slowly: with a naive draw it forgets within a block, and a damaged
    state would go unnoticed. Four layers, not more: with eight, what bfloat16 rounds differently in
    a batch of other requests was enough to change an answer, connector or not.
    """
    head, inner, layers, experts = 64, 128, 4, 4
    linear, key_heads, value_heads, kernel = 128, 2, 4, 4
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4)

    def delta_net(prefix: str) -> Iterator[Tensor]:
        keys, values = key_heads * linear, value_heads * linear
        yield matrix(f"{prefix}.in_proj_qkvz", 2 * keys + 2 * values, HIDDEN)
        yield matrix(f"{prefix}.in_proj_ba", 2 * value_heads, HIDDEN)
        yield Tensor(f"{prefix}.conv1d.weight", (2 * keys + values, 1, kernel), fan_in=kernel)
        yield vector(f"{prefix}.A_log", value_heads, -4.0)
        yield vector(f"{prefix}.dt_bias", value_heads, -2.0)
        yield vector(f"{prefix}.norm.weight", linear)
        yield matrix(f"{prefix}.out_proj", HIDDEN, values)

    def layer(index: int, prefix: str) -> Iterator[Tensor]:
        if kinds[index] == "linear_attention":
            yield from delta_net(f"{prefix}.linear_attn")
        else:
            # The query projection also carries the output gate.
            yield from attention(f"{prefix}.self_attn", head, query_heads=2 * HEADS)
            yield vector(f"{prefix}.self_attn.q_norm.weight", head, 0.0)
            yield vector(f"{prefix}.self_attn.k_norm.weight", head, 0.0)
        yield matrix(f"{prefix}.mlp.gate", experts, HIDDEN)
        for expert in range(experts):
            yield from feed_forward(f"{prefix}.mlp.experts.{expert}", inner)
        yield from feed_forward(f"{prefix}.mlp.shared_expert", inner)
        yield matrix(f"{prefix}.mlp.shared_expert_gate", 1, HIDDEN)
        yield from norms(prefix, 0.0, "input_layernorm", "post_attention_layernorm")

    config = common(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        "bfloat16",
        head_dim=head,
        intermediate_size=inner,
        num_hidden_layers=layers,
        hidden_act="silu",
        layer_types=kinds,
        linear_conv_kernel_dim=kernel,
        linear_key_head_dim=linear,
        linear_value_head_dim=linear,
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        moe_intermediate_size=inner,
        shared_expert_intermediate_size=inner,
        num_experts=experts,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        partial_rotary_factor=0.25,
        rope_parameters={
            "rope_theta": 10000.0,
            "rope_type": "default",
            "partial_rotary_factor": 0.25,
        },
    )
    return Recipe(
        "qwen3_next", "recurrent+full", "bfloat16", config, trunk(layers, layer, norm=0.0)
    )


def deepseek_v3() -> Recipe:
    """Latent attention: keys and values of all heads in one vector of 512 + 64 per token."""
    inner, layers, experts = 128, 3, 4
    rank, nope, rope, value = 512, 32, 64, 32

    def layer(index: int, prefix: str) -> Iterator[Tensor]:
        attn = f"{prefix}.self_attn"
        yield matrix(f"{attn}.q_proj", HEADS * (nope + rope), HIDDEN)
        yield matrix(f"{attn}.kv_a_proj_with_mqa", rank + rope, HIDDEN)
        yield vector(f"{attn}.kv_a_layernorm.weight", rank)
        yield matrix(f"{attn}.kv_b_proj", HEADS * (nope + value), rank)
        yield matrix(f"{attn}.o_proj", HIDDEN, HEADS * value)
        if index == 0:
            yield from feed_forward(f"{prefix}.mlp", inner)
        else:
            yield matrix(f"{prefix}.mlp.gate", experts, HIDDEN)
            yield vector(f"{prefix}.mlp.gate.e_score_correction_bias", experts, 0.0)
            for expert in range(experts):
                yield from feed_forward(f"{prefix}.mlp.experts.{expert}", inner)
            yield from feed_forward(f"{prefix}.mlp.shared_experts", inner)
        yield from norms(prefix, 1.0, "input_layernorm", "post_attention_layernorm")

    config = common(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        "float32",
        num_key_value_heads=HEADS,
        intermediate_size=inner,
        num_hidden_layers=layers,
        hidden_act="silu",
        first_k_dense_replace=1,
        kv_lora_rank=rank,
        q_lora_rank=None,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        moe_intermediate_size=inner,
        n_routed_experts=experts,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        routed_scaling_factor=1.0,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    )
    return Recipe("deepseek_v3", "latent", "float32", config, trunk(layers, layer))


# One per layout class, in the order of the demo.
RECIPES: dict[str, Callable[[], Recipe]] = {
    "llama": llama,
    "gemma3": gemma3,
    "gpt_oss": gpt_oss,
    "qwen3_next": qwen3_next,
    "deepseek_v3": deepseek_v3,
}

ALL = {**RECIPES, "llama_twin": llama_twin}
