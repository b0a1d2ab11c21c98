"""How much memory a rank of train.py needs, by arithmetic: the table of --dry-run. No weight is allocated for it.

What a run holds all the time: weights, the reference, AdamW's two moments. What comes and goes, of which the larger counts:

    sampling   copies of the weights that the decoder fuses or converts, keys and values of --sample-batch rows, logits
    update     gradients, what the layers keep for the backward pass of --micro-batch-tok tokens, logits of the responses

An estimate: allocators round up, kernels need scratch space, a GPU's context takes half a GiB, and libraries about 0.7 GiB of a
CPU process. tests/test_memory.py compares it with what was measured.

Letters: M tokens of a micro-batch, N of them in responses; D hidden, I intermediate, V vocabulary, L layers, H query heads,
G key-value heads, C head size.
"""

import math

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

import lora
from config import Config
from drafts import LONGEST, MOST_TOK
from model import CONTEXT_TOK, read_config, tiny_config
from sampler import PREFILL_TOK
from smollm2 import find_smollm2
from warmstart import WarmStart

GIB = 2**30
FP32, BF16 = 4, 2  # bytes


def model_config(model: str) -> PretrainedConfig:
    """Return the shape of a model; tiny's vocabulary is the largest that it may have.

    Raises OSError if it is not at hand, ValueError if it is none.
    """
    if model == "tiny":
        return tiny_config(WarmStart().vocabulary)
    return read_config(find_smollm2() if model in CONTEXT_TOK else lora.base_of(model))


def count_weights(shape: PretrainedConfig) -> tuple[int, int, nn.Module]:
    """Return the numbers of all weights (tied ones once) and of those in projections, and the model on no device.

    Raises ValueError for a shape of which no model can be built.
    """
    try:
        with torch.device("meta"):
            lm = AutoModelForCausalLM.from_config(shape)
    except Exception as error:
        raise ValueError(f"no model has this shape: {error!r}") from error
    inside = sum(lm.get_submodule(name).weight.numel() for name in lora.projections(lm))
    return sum(p.numel() for p in lm.parameters()), inside, lm


def estimate(config: Config, shape: PretrainedConfig, world: int = 1, device: str = "cpu") -> dict[str, float]:
    """Return GiB per rank by what they are for, and their peak."""
    total, inside, lm = count_weights(shape)
    adapter = sum(config.lora_rank * sum(lm.get_submodule(name).weight.shape) for name in lora.projections(lm))
    trained = adapter if config.lora_rank else total
    bf16 = config.precision == "bf16"
    frozen = FP32 * (total - inside) + (BF16 if bf16 else FP32) * inside  # bytes
    weights = frozen + FP32 * adapter if config.lora_rank else FP32 * total
    reference = 0 if config.lora_rank else frozen
    parts = world if config.shard else 1
    table = {
        "weights": weights / parts,
        "reference": reference / parts,
        "AdamW": 2 * FP32 * trained / parts,
        "whole weights while sampling and scoring": weights + reference if config.shard else 0,
        "sampling": sampling_bytes(config, shape, total, inside, PREFILL_TOK[device]),
        "gradients": FP32 * trained / parts * (1 if device == "cpu" else 2),  # a GPU steps all tensors at once
        "update": update_bytes(config, shape, inside),
    }
    held = table["weights"] + table["reference"] + table["AdamW"]
    table["peak"] = held + max(
        table["whole weights while sampling and scoring"] + table["sampling"], table["gradients"] + table["update"]
    )
    return {name: size / GIB for name, size in table.items()}


def sampling_bytes(config: Config, shape: PretrainedConfig, total: int, inside: int, prefill_tok: int) -> float:
    """Return the bytes that sampler.generate needs beside the policy's own."""
    size = BF16 if config.precision == "bf16" else FP32
    fused = 1 - _output_share(shape)  # fp32 keeps output projections as they are
    copies = size * (total if config.precision == "bf16" else inside if config.lora_rank else fused * inside)
    tokens = config.max_prompt_tok + config.max_new_tok
    per_token = shape.num_hidden_layers * 2 * _kv_width(shape) * size  # keys and values
    cache = config.sample_batch * tokens * per_token
    prefix = max(config.max_prompt_tok, prefill_tok) * (per_token + _kept(shape, size) / 2)
    logits = 4 * max(config.sample_batch, min(LONGEST * config.sample_batch, MOST_TOK)) * shape.vocab_size * FP32
    return copies + cache + prefix + logits


def update_bytes(config: Config, shape: PretrainedConfig, inside: int) -> float:
    """Return the bytes that forward and backward of one micro-batch need beside weights and gradients."""
    bf16, layers = config.precision == "bf16", shape.num_hidden_layers
    longest = config.max_prompt_tok + config.max_new_tok
    m = max(config.micro_batch_tok, longest)  # M
    n = m * config.max_new_tok / longest  # N
    kept = _kept(shape, BF16 if bf16 else FP32)
    converted = BF16 * inside if bf16 and not config.lora_rank else 0  # weights, for as long as they are needed
    if config.gradient_checkpointing:
        activations = m * (layers * FP32 * shape.hidden_size + 2 * kept) + converted / layers
    else:
        activations = m * layers * kept + converted
    logits = shape.vocab_size * (2 * (BF16 if bf16 else FP32) * m + 5 * FP32 * n)  # with their gradients
    return activations + logits


def _kept(shape: PretrainedConfig, size: int) -> float:
    """Return the bytes that one layer keeps of a token for its backward pass; size: of what matrix products read."""
    d, width = shape.hidden_size, shape.num_attention_heads * _head_size(shape)
    norms = 6 * d * FP32 + (2 * d * size if size == BF16 else 0)  # residual stream, normalised, scaled; twice
    attention = 5 * width  # queries, keys and values for each head, what they attend to, and that once more in order
    mlp = 4 * shape.intermediate_size  # gate, its SiLU, up, their product
    return norms + (attention + mlp) * size


def _head_size(shape: PretrainedConfig) -> int:
    return getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads


def _kv_width(shape: PretrainedConfig) -> int:
    return (getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads) * _head_size(shape)


def _output_share(shape: PretrainedConfig) -> float:
    """Return the share of a layer's weights that are in its two output projections, of attention and of the MLP."""
    width, inner = shape.num_attention_heads * _head_size(shape), shape.intermediate_size
    return (width + inner) / (2 * width + 2 * _kv_width(shape) + 3 * inner)


def table(config: Config, world: int) -> str:
    """Return the estimate as text, a line per use; why there is none, if the model is not at hand or of an unknown shape."""
    try:
        shape = model_config(config.model)
        sizes = estimate(config, shape, world, "cuda" if torch.cuda.is_available() else "cpu")
    except (OSError, ValueError, AttributeError) as error:
        return f"memory: not known, since the shape of {config.model} is not at hand ({' '.join(str(error).split())[:120]})"
    digits = 3 if sizes["peak"] < 1 else 1
    of = f"{config.model}, {config.precision}, {world} rank{'s' * (world > 1)}"
    lines = [f"{name:42s} {size:8.{digits}f}" for name, size in sizes.items() if not math.isclose(size, 0)]
    return "\n".join([f"memory of a rank, GiB ({of})", *lines])
