"""LoRA (2106.09685): the weights stay as they are, each projection of the decoder layers learns an addition of low rank.

    W x  becomes  W x + alpha / r B A x        A (r, D_in) random, B (D_out, r) zero at the start: the policy is then the base

r is --lora-rank; alpha is 32 at every rank: the best learning rate then does not depend on the rank, and is about ten times
that of full training (Schulman et al., LoRA Without Regret, 2025). With alpha = 2 r it would (dev/LOG.md). Without the adapter
the policy is the starting policy: the KL reference needs no weights of its own. Files are those of PEFT, which is not needed.

Letters: r rank; D_in, D_out of a projection.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

ALPHA = 32
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
NOT_PLAIN = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "bias", "lora_bias",
             "fan_in_fan_out", "layer_replication", "trainable_token_indices", "target_parameters",
             "alora_invocation_tokens", "use_qalora")  # of PEFT's configuration  # fmt: skip


class LoRALinear(nn.Module):
    """A frozen linear layer and its adapter. Names are those of PEFT."""

    def __init__(self, base_layer: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Linear(base_layer.in_features, rank, bias=False)  # Kaiming uniform
        self.lora_B = nn.Linear(rank, base_layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.rank, self.alpha, self.enabled = rank, alpha, True
        self.to(base_layer.weight.device, base_layer.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base_layer(x)  # (..., D_out)
        return y + self.lora_B(self.alpha / self.rank * self.lora_A(x)) if self.enabled else y

    @property
    def weight(self) -> Tensor:
        """The weight (D_out, D_in) of the linear layer that this one equals, computed at each call."""
        weight = self.base_layer.weight
        return self.merged(weight, self.lora_A.weight, self.lora_B.weight) if self.enabled else weight

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias

    def merged(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return weight + self.alpha / self.rank * (b @ a)


def decoder_layers(lm: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformers model that repeat."""
    return [module for module in lm.modules() if type(module).__name__ in (lm._no_split_modules or ())]


def projections(lm: nn.Module) -> list[str]:
    """Name the linear layers inside the decoder layers: never embeddings, output or value head."""
    inside = {module for layer in decoder_layers(lm) for module in layer.modules()}
    return [name for name, module in lm.named_modules() if isinstance(module, nn.Linear) and module in inside]


def adapters(module: nn.Module) -> dict[str, LoRALinear]:
    """Return the adapted layers by their names."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, LoRALinear)}


def add_adapter(lm: nn.Module, rank: int, seed: int, alpha: float = ALPHA, names: Iterable[str] | None = None) -> None:
    """Freeze a language model and adapt the named layers, by default all projections. Raises ValueError if it has none."""
    names = projections(lm) if names is None else names
    if not names:
        raise ValueError(f"{type(lm).__name__} has no linear layers that LoRA could adapt: leave out --lora-rank")
    lm.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name in names:
            lm.set_submodule(name, LoRALinear(lm.get_submodule(name), rank, alpha))


def merge(module: nn.Module) -> nn.Module:
    """Add every adapter to its weights, in place; return the plain model, all of which can be trained."""
    for name, layer in adapters(module).items():
        layer.base_layer.weight.data = layer.weight.detach()
        module.set_submodule(name, layer.base_layer)
    return module.requires_grad_(True)


@contextmanager
def adapter_off(module: nn.Module) -> Iterator[None]:
    """Compute without the adapter."""
    layers = adapters(module).values()
    for layer in layers:
        layer.enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.enabled = True


class AdapterOff(nn.Module):
    """A policy without its adapter, now and after any update: the KL reference. It has no weights of its own."""

    def __init__(self, policy: nn.Module):
        super().__init__()
        self.policy = (policy,)  # in a tuple, so that it is no submodule: no one trains, shards or counts it twice

    def forward(self, *args, **options):
        with adapter_off(self.policy[0]):
            return self.policy[0](*args, **options)


# ------------------------------------------------------------------------------------------------------------------- files


def plain_weights(lm: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights (by name, of an adapted model) of the plain model that equals it, on the CPU."""
    layers, plain = adapters(lm), {}
    for name, x in weights.items():
        prefix, _, leaf = name.partition(".base_layer.")
        if leaf == "weight":
            x = layers[prefix].merged(x, *(weights[f"{prefix}.lora_{part}.weight"] for part in "AB"))
        if not _is_adapters(name):
            plain[name.replace(".base_layer.", ".")] = x.detach().cpu()
    return plain


def save_adapter(lm: nn.Module, weights: dict[str, Tensor], directory: Path, base: Path | str) -> None:
    """Write the adapter among the weights (by name) as PEFT does. base: directory or name of the model that it is for."""
    directory.mkdir(parents=True, exist_ok=True)
    layers = adapters(lm)
    first = next(iter(layers.values()))
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "inference_mode": True, "r": first.rank, "lora_alpha": first.alpha,
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}), "lora_dropout": 0.0, "bias": "none",
        "base_model_name_or_path": str(base),
    }  # fmt: skip
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    tensors = {PEFT_PREFIX + name: x.detach().cpu().contiguous() for name, x in weights.items() if _is_adapters(name)}
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def load_adapter(lm: nn.Module, directory: Path) -> None:
    """Adapt a plain language model by PEFT's files. Raises ValueError if they are not plain LoRA, or of another model."""
    config, weights = json.loads((directory / CONFIG_FILE).read_text()), load_file(directory / WEIGHTS_FILE)
    used = [name for name in NOT_PLAIN if config.get(name) not in (None, False, "none", {}, [])]
    if config.get("peft_type") != "LORA" or used:
        raise ValueError(f"{directory}: {used[0] if used else config.get('peft_type')} is not supported, only plain LoRA is")
    if config.get("init_lora_weights") not in (None, True, False, "gaussian"):  # others change the base at loading
        raise ValueError(f"{directory}: init_lora_weights {config['init_lora_weights']!r} is not supported")
    adapted = {key.removeprefix(PEFT_PREFIX).rpartition(".lora_")[0] for key in weights}
    if unknown := adapted - set(projections(lm)):
        raise ValueError(f"{directory}: {min(unknown)} is not a linear layer inside a decoder layer of the model")
    add_adapter(lm, config["r"], 0, config["lora_alpha"], adapted)
    ours = {PEFT_PREFIX + name: p for name, p in lm.named_parameters() if _is_adapters(name)}
    if {key: p.shape for key, p in ours.items()} != {key: x.shape for key, x in weights.items()}:
        raise ValueError(f"{directory}: its tensors do not have the shapes of an adapter of rank {config['r']} of the model")
    for key, p in ours.items():
        p.data.copy_(weights[key])


def base_of(name_or_dir: str) -> str:
    """Return the model that an adapter in PEFT's files was made for; any other name or directory as it is."""
    try:
        return json.loads((Path(name_or_dir) / CONFIG_FILE).read_text())["base_model_name_or_path"] or name_or_dir
    except (OSError, ValueError, KeyError, TypeError):
        return name_or_dir


def _is_adapters(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name
