"""One decoding step, a few new tokens per row, over a preallocated cache: what the sampler spends its time in.

`Decoder` is a short forward of our own for the Llama family (Llama, Qwen2, Qwen3: the same layer but for biases and norms of
queries and keys), over the policy's weights. It fuses projections, groups query heads without copying keys, and does none
of the bookkeeping of a general model. Any other architecture decodes with transformers' forward (`ModelDecoder`).

Letters: n rows in use, N new tokens of each, L layers, H query heads, G key-value heads, C head size, S slots, W places of the
cache, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from model import Policy


class Slots:
    """Keys and values of S rows with W places each. Row r holds `lengths[r]` tokens, from place 0 on; rows may differ."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], slots: int, places: int):
        """Make room for rows like the given keys and values of a prompt: per layer (G, P, C)."""
        self.kv = [k.new_zeros(slots, 2 * k.shape[0], places, k.shape[2]) for k in keys]  # L x (S, 2G, W, C), keys first
        self.lengths = torch.zeros(slots, dtype=torch.long, device=keys[0].device)
        self.rows, self.places = (torch.arange(size, device=keys[0].device) for size in (slots, places))
        self.places_in_use = 0  # no row is longer

    def fill(self, row: int, keys: list[Tensor], values: list[Tensor]) -> None:
        """Start a row anew with a prompt: per layer (G, P, C)."""
        length = keys[0].shape[1]  # P
        for kv, k, v in zip(self.kv, keys, values, strict=True):
            torch.cat([k, v], out=kv[row, :, :length])
        self.lengths[row] = length
        self.places_in_use = max(self.places_in_use, length)

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for kv in self.kv:
            kv[target, :, : self.places_in_use] = kv[source, :, : self.places_in_use]
        self.lengths[target] = self.lengths[source]

    def trim(self, n: int) -> None:
        """Forget places that none of the first n rows has come to. Waits for the GPU."""
        self.places_in_use = int(self.lengths[:n].max()) if n else 0

    def open(self, n: int, new: int) -> tuple[Tensor, Tensor]:
        """Make place for the next `new` tokens of the first n rows.

        Returns their places (n, N) and what to add to attention scores, (n, N, places in use): 0 up to the token's own place.
        """
        self.open_places = self.lengths[:n, None] + self.places[:new]  # (n, N)
        self.places_in_use = min(self.places_in_use + new, len(self.places))
        ahead = self.places[: self.places_in_use] > self.open_places[..., None]  # (n, N, places in use)
        return self.open_places, torch.zeros(ahead.shape, dtype=self.kv[0].dtype, device=ahead.device).masked_fill_(
            ahead, -torch.inf
        )

    def write(self, layer: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new tokens' keys and values (n, N, 2G, C); return those of the first n rows, (n, G, places in use, C)."""
        n, buffer = len(kv), self.kv[layer]
        buffer[self.rows[:n, None], :, self.open_places] = kv.to(buffer.dtype)
        return buffer[:n, :, : self.places_in_use].chunk(2, 1)


def build_decoder(policy: Policy) -> "Decoder | ModelDecoder":
    return Decoder(policy) if Decoder.understands(policy) else ModelDecoder(policy)


class ModelDecoder:
    """Decode with transformers' forward."""

    def __init__(self, policy: Policy):
        self.policy = policy

    def step(self, tokens: Tensor, slots: Slots) -> Tensor:
        """Write tokens (n, N) behind the first n rows, whose lengths stay; return the logits of what follows, (n, N, V)."""
        places, mask = slots.open(*tokens.shape)
        cache = DynamicCache(config=self.policy.lm.config)
        cache.layers = [_SlotLayer(slots, layer, tokens.shape[1]) for layer in range(len(slots.kv))]
        return self.policy(tokens, cache=cache, attention_mask=mask[:, None], position_ids=places, use_cache=True)[0]


class _SlotLayer(DynamicLayer):
    """One layer of Slots as transformers wants it."""

    def __init__(self, slots: Slots, layer: int, new: int):
        super().__init__()
        self.slots, self.layer, self.is_initialized = slots, layer, True
        self.keys, self.values = slots.kv[layer][:, :, : slots.places_in_use - new], None  # what get_seq_length looks at

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__):
        return self.slots.write(self.layer, torch.cat([key_states, value_states], 1).transpose(1, 2))


class Decoder:
    """Decode with a forward of our own. Built anew for each call of the sampler: it holds copies of the fused weights."""

    @staticmethod
    def understands(policy: Policy) -> bool:
        """Tell whether the architecture is one that we have a forward for."""
        config = policy.lm.config
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        return (
            config.model_type in ("llama", "qwen2", "qwen3") and layer_types == {"full_attention"}
            and config.hidden_act == "silu" and rope_type in ("default", "linear", "llama3")
        )  # fmt: skip

    def __init__(self, policy: Policy):
        lm, config = policy.lm, policy.lm.config
        self.model, head = lm.base_model, lm.get_output_embeddings()
        dtype = torch.bfloat16 if policy.bf16 else head.weight.dtype
        self.head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads  # C
        self.query_heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads  # H, G
        self.eps = config.rms_norm_eps
        self.layers = []
        for layer in self.model.layers:
            a, m = layer.self_attn, layer.mlp
            self.layers.append((  # tensors: the weights of a LoRALinear are computed at each access
                _fuse([a.q_proj, a.k_proj, a.v_proj], layer.input_layernorm, dtype),
                getattr(a, "q_norm", None), getattr(a, "k_norm", None), _fuse([a.o_proj], None, dtype),
                _fuse([m.gate_proj, m.up_proj], layer.post_attention_layernorm, dtype), _fuse([m.down_proj], None, dtype),
            ))  # fmt: skip
        self.head = _fuse([head], None, dtype)  # not with the norm's scale: as it is, fp32 needs no copy
        self.cos = self.sin = None

    def _rotation(self, positions: Tensor, places: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (n N, 1, C) of the positions (n N,). The first half of the sines is negative."""
        if self.cos is None or len(self.cos) < places:
            angles = torch.arange(places, device=positions.device)[None]  # (1, W)
            cos, sin = self.model.rotary_emb(torch.zeros((), device=positions.device), angles)
            half = self.head_size // 2
            self.cos, self.sin = cos[0].to(dtype), torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1).to(dtype)  # (W, C)
        return self.cos[positions][:, None], self.sin[positions][:, None]

    def step(self, tokens: Tensor, slots: Slots) -> Tensor:
        """Write tokens (n, N) behind the first n rows, whose lengths stay; return the logits of what follows, (n, N, V)."""
        n, new = tokens.shape
        size, heads, groups = self.head_size, self.query_heads, self.kv_heads
        places, mask = slots.open(n, new)
        x = self.model.embed_tokens(tokens.flatten())  # (n N, D)
        cos, sin = self._rotation(places.flatten(), len(slots.places), x.dtype)  # (n N, 1, C)
        # the query heads of a group take the place of query positions: keys are read once, not once a head
        mask = mask[:, None] if new == 1 else mask.repeat_interleave(heads // groups, 1)[:, None]  # (n, 1, N H / G, places)
        for i, (qkv, q_norm, k_norm, out, gate_up, down) in enumerate(self.layers):
            parts = _linear(self._normalised(x), *qkv).view(n * new, -1, size)  # (n N, H + 2G, C)
            qk = parts[:, : heads + groups]
            if q_norm is not None:
                norms = torch.cat([q_norm.weight.expand(heads, -1), k_norm.weight.expand(groups, -1)])
                qk = self._normalised(qk) * norms
            parts[:, : heads + groups] = torch.addcmul(qk * cos, qk.roll(size // 2, -1), sin)  # rotary embedding (2104.09864)
            keys, values = slots.write(i, parts[:, heads:].unflatten(0, (n, new)))
            q = parts[:, :heads].reshape(n, new, groups, -1, size).transpose(1, 2)  # (n, G, N, H / G, C)
            attended = F.scaled_dot_product_attention(q.flatten(2, 3), keys, values, attn_mask=mask)  # (n, G, N H / G, C)
            attended = attended.unflatten(2, (new, -1)).transpose(1, 2)  # (n, N, G, H / G, C)
            x = x + _linear(attended.reshape(n * new, -1), *out)
            gate, up = _linear(self._normalised(x), *gate_up).chunk(2, -1)
            x = x + _linear(F.silu(gate) * up, *down)
        return _linear(self._normalised(x) * self.model.norm.weight, *self.head).unflatten(0, (n, new))

    def _normalised(self, x: Tensor) -> Tensor:
        """Divide by the root mean square (1910.07467); the learned scale is in the weights that follow, see _fuse."""
        x32 = x.float()
        return (x32 * (x32.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias, (R, O), for few rows x (R, I) and a large weight (O, I).

    On CPUs in blocks of the weight's rows: BLAS is made for one row or for many, and with some takes longer for the whole.
    """
    blocks, (outputs, inputs) = 8, weight.shape
    if x.device.type != "cpu" or weight.numel() < 2**18 or outputs % blocks or not 1 < len(x) < 16:
        return F.linear(x, weight, bias)
    y = torch.bmm(x.expand(blocks, -1, -1), weight.view(blocks, -1, inputs).mT)  # (K, R, O / K)
    y = y.transpose(0, 1).reshape(len(x), outputs)
    return y if bias is None else y + bias


def _fuse(linears: list[torch.nn.Linear], norm: torch.nn.Module | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Stack the weights and biases of linear layers that read what the norm gives; its scale goes into the weights."""
    weight = torch.cat([linear.weight for linear in linears]) if len(linears) > 1 else linears[0].weight
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears]).to(dtype)
    return (weight if norm is None else weight * norm.weight).to(dtype), bias
