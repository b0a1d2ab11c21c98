"""Advantages: how much better a response was than expected, token by token; and the masked values and moments they are made of.

Letters, masks and ranks as in ppo.py: B episodes, T tokens, a (B, T) tensor is aligned with its actions.
"""

import torch

from duration import group_mean
from ranks import all_sum


# masks
def masked(x, mask):
    """Return x, at least in fp32, with 0 in each cell outside the mask, whatever it held (no NaN in the gradient)."""
    return torch.where(mask, x.to(torch.promote_types(x.dtype, torch.float32)), 0.0)


def masked_moments(x, mask):
    """Return mean and biased standard deviation over the valid tokens of all ranks, in two passes. A collective."""
    x, count = masked(x, mask).double(), all_sum(mask.sum()).clamp(min=1)
    mean = all_sum(x.sum()) / count
    variance = all_sum(masked(x - mean, mask).square().sum()) / count
    return mean, variance.sqrt()


# advantages
def compute_gae(rewards, values, action_mask, gamma, gae_lambda):
    """Compute generalised advantage estimates and returns (GAE, 1506.02438), all (B, T), in reward units.

    A masked token between two actions is skipped, not decayed through. The last action is terminal. fp64 stays fp64.
    """
    rewards, values = masked(rewards, action_mask), masked(values, action_mask)  # (B, T)
    advantages = torch.zeros_like(rewards + values)  # (B, T)
    next_value = next_advantage = torch.zeros_like(advantages[:, 0])  # (B,)
    for t in reversed(range(rewards.shape[1])):
        valid = action_mask[:, t]  # (B,)
        delta = rewards[:, t] + gamma * next_value - values[:, t]  # δ_t = r_t + γ V(s_{t+1}) - V(s_t)
        advantage = delta + gamma * gae_lambda * next_advantage  # A_t = δ_t + γλ A_{t+1}
        advantages[:, t] = torch.where(valid, advantage, 0.0)
        next_value = torch.where(valid, values[:, t], next_value)
        next_advantage = torch.where(valid, advantage, next_advantage)
    return advantages, advantages + values  # return_t = A_t + V_t


def masked_whiten(x, mask, failed=None):
    """Whiten x (B, T) over the valid tokens of all ranks: z = (x - m) / s; a lone token becomes 0. A collective.

    With failed (B,), first x <- (x - m_g) / 2 s_g + (m_g - m) / s, where g is the sample's group, failed or valid. So
    .6 against .5 counts beside a -10, and the push from failed to valid stays (whitening the groups apart loses it):
    with half the batch failed, two standard deviations of each group fit between their means.
    """
    z = masked(x, mask).double()  # (B, T)
    mean, std = masked_moments(z, mask)
    if failed is not None:
        for group in (failed, ~failed):
            inside = mask & group[:, None]  # (B, T)
            group_mean, group_std = masked_moments(z, inside)
            isolated = (z - group_mean) / (2 * group_std + 1e-8) + (group_mean - mean) / (std + 1e-8)  # (B, T)
            z = torch.where(inside, isolated, z)
        mean, std = masked_moments(z, mask)
    return masked((z - mean) / (std + 1e-8), mask).to(masked(x, mask).dtype)  # (B, T)


def group_advantages(rewards, action_mask, group):
    """Compute group-relative advantages (GRPO, 2402.03300), (B, T): (R - mean) / (std + 1e-6), equal on all tokens of a row.

    R sums a row's rewards (B, T); mean and biased std are over its group (B,) on all ranks, 0 for a lone sample or no spread.
    GRPO samples a group from one prompt; improvement prompts of a group differ in the program they show. A collective.
    """
    rewards = masked(rewards, action_mask)  # (B, T)
    group = torch.where(action_mask.any(1), group.long() + 1, 0)  # (B,), rows without an action apart
    centred = (total := rewards.double().sum(1)) - group_mean(total, group)  # (B,)
    std = group_mean(centred.square(), group).sqrt()  # (B,)
    relative = torch.where(std <= 1e-6, 0.0, centred / (std + 1e-6))  # (B,): less spread is rounding; a NaN stays one
    return masked(relative[:, None].to(rewards.dtype), action_mask)
