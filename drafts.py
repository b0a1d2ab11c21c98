"""Drafts of what a policy writes next, looked up in what was written before: much of a program repeats an earlier one.

The sampler runs the model once over a whole draft and keeps as much of it as it would have sampled anyway: speculative decoding
(2211.17192) with a table of n-grams for the small model. A draft decides how fast a sample is made, not what it is
(but for rounding: more tokens at once are other matrix products).

Letters: n rows, N new tokens, K tokens of context.
"""

import torch
from torch import Tensor

ORDERS = (8, 4, 2, 1)  # lengths of the n-grams that a next token is looked up by, the longest that is known first
K = ORDERS[0]
BUCKETS_LOG2 = 18  # n-grams that share a bucket overwrite each other: a wrong draft costs little
LONGEST, MOST_TOK = 8, 256  # tokens that go through the model at once: of one row, of all (their logits take memory)
# How many tokens take as long as the rest of a step: as reading the weights, and, times the parameters of the model, as calling
# its layers, most of what a tiny model does. Measured on a CPU with 1 and 135 million parameters, estimated for GPUs.
READING_TOK, CALLING_TOK_PARAMETERS = {"cpu": 12, "cuda": 200}, 5e7


class Drafts:
    """A table of n-grams, and how far its drafts have been right."""

    def __init__(self, texts: list[list[int]], device: torch.device, parameters: int):
        """Learn the n-grams of the texts, each a list of token ids. parameters: of the model that is drafted for."""
        self.free_tok = READING_TOK[device.type] + CALLING_TOK_PARAMETERS / parameters
        self.table = torch.full((len(ORDERS), 2**BUCKETS_LOG2), -1, device=device)  # the token that came next, or -1
        factors = torch.randint(-(2**62), 2**62, (len(ORDERS), K), generator=torch.Generator().manual_seed(0)) | 1
        for row, order in enumerate(ORDERS):
            factors[row, : K - order] = 0
        self.factors, self.rows = factors.to(device), torch.arange(len(ORDERS), device=device)
        self.share, self.weight = 0.5, 1.0  # of drafted tokens that are right; how much it is known by
        self.right, self.tried = torch.zeros(2, dtype=torch.long, device=device)  # counted since the last look
        for ids in filter(None, texts):
            windows = torch.tensor([-1] * K + ids, device=device).unfold(0, K + 1, 1)  # (tokens, K + 1)
            self.learn(windows[:, :K], windows[:, K])

    def learn(self, context: Tensor, token: Tensor) -> None:
        """Take in that each token (n,) came after its context (n, K); of several in one bucket, any."""
        self.table[self.rows, self._buckets(context)] = token[:, None]

    def propose(self, context: Tensor, new: int) -> Tensor:
        """Return the likely next tokens, (n, N), after each context (n, K); -1 where nothing is known."""
        drafted = []
        for _ in range(new):
            known = self.table[self.rows, self._buckets(context)]  # (n, orders)
            token = known[:, -1]
            for i in reversed(range(len(ORDERS) - 1)):
                token = torch.where(known[:, i] >= 0, known[:, i], token)
            drafted.append(token)
            context = torch.cat([context[:, 1:], token[:, None]], 1)
        return torch.stack(drafted, 1)

    def accept(self, context: Tensor, draft: Tensor, token: Tensor, goes_on: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many sampled tokens are to be kept, (n,), and the contexts (n, K) after them; learn from those.

        token (n, N): sampled at each place, given the draft (n, N) before it: right up to the first that the draft has not.
        goes_on (n,): whether the sample of a row has not ended; nothing is kept of one that has.
        """
        new, places = token.shape[1], torch.arange(token.shape[1], device=token.device)
        agreed = (token == draft).long().cumprod(1).sum(1) * goes_on  # (n,)
        kept = (agreed + 1).clamp(max=new) * goes_on  # (n,)
        self.right, self.tried = self.right + agreed.sum(), self.tried + kept.sum()
        recent = torch.cat([context, token], 1)  # (n, K + N)
        learnt = torch.where(places < kept[:, None], places, 0)  # (n, N): the first token once more for one that is not kept
        windows = recent.unfold(1, K, 1).gather(1, learnt[..., None].expand(-1, -1, K))  # (n, N, K)
        self.learn(windows.flatten(0, 1), token.gather(1, learnt).flatten())
        return kept, recent.gather(1, kept[:, None] + torch.arange(K, device=token.device))

    def best_length(self, n: int) -> int:
        """Return N for n rows: the most tokens kept per time (2211.17192, section 3.3). Waits for the GPU.

        With a share a of drafted tokens right, (1 - a^N) / (1 - a) of N are kept, in a time of 1 + n N / free_tok.
        """
        right, tried = torch.stack([self.right, self.tried]).tolist()
        decayed = 0.9 * self.weight
        self.share = (decayed * self.share + right) / (decayed + tried)
        self.weight, self.right, self.tried = decayed + tried, self.right * 0, self.tried * 0
        a = min(self.share, 0.99)
        lengths = range(1, max(1, min(LONGEST, MOST_TOK // n)) + 1)
        return max(lengths, key=lambda new: (1 - a**new) / (1 - a) / (1 + n * new / self.free_tok))

    def _buckets(self, context: Tensor) -> Tensor:
        """Return where each order of n-gram is in the table: (n, K) -> (n, orders). Products wrap around."""
        return ((context[:, None] * self.factors).sum(-1) >> 40) & (2**BUCKETS_LOG2 - 1)
