"""Invented sentences: templates with slots, and choices that depend on nothing but the given random numbers."""

from collections.abc import Callable

import numpy as np

Slots = dict[str, list[str] | Callable[[Callable[[], float]], str]]


def pick(random: Callable[[], float], options: list[str]) -> str:
    """Return one option, all equally likely."""
    return options[int(random() * len(options))]


def shuffled(random: Callable[[], float], items: list[str]) -> list[str]:
    """Return the items in random order."""
    return [item for _, item in sorted((random(), item) for item in items)]


def fill(random: Callable[[], float], template: str, slots: Slots) -> str:
    """Return the template with each {slot} replaced by one of its options, or by what its function returns."""
    while (start := template.find("{")) >= 0:
        end = template.index("}", start)
        options = slots[template[start + 1 : end]]
        value = options(random) if callable(options) else pick(random, options)
        template = template[:start] + value + template[end + 1 :]
    return template


def hex_ids(rng: np.random.Generator, n: int, digits: int) -> list[str]:
    """Return n different ids of lower-case hexadecimal digits, the first one a letter."""
    ids: dict[str, None] = {}  # a set with an order
    while len(ids) < n:
        rest = "".join("0123456789abcdef"[d] for d in rng.integers(0, 16, digits - 1))
        ids["abcdef"[int(rng.integers(0, 6))] + rest] = None
    return list(ids)


def draw_classes(rng: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    """Draw one class per row of probabilities (rows, classes): their numbers, (rows,)."""
    return (probabilities.cumsum(axis=1)[:, :-1] < rng.random(len(probabilities))[:, None]).sum(axis=1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits, along the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
