"""From rewards to advantages, in NumPy: no gradient flows through any of this.

There are two routes. With a value function: ``penalised_rewards``, then ``gae``, then ``whiten``. Without one:
``group_baseline`` or ``leave_one_out``, then perhaps ``group_scale`` or ``batch_scale``. Such an advantage belongs to
the whole rollout, and ``at_every_token`` gives it to each of its tokens.

In episodes of several turns both routes can give credit to turns instead: ``turn_gae`` and ``turn_advantages``. A turn
is a run of tokens that the policy chose; what the environment wrote lies between two of them.

``mask`` is the completion mask: True where the policy chose the token. Elsewhere inputs are never read, and results
are 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from steadyrl.maths import kl

# Advantages [B] and groups [B] to advantages of another size; see ``group_scale``.
Scale = Callable[[np.ndarray, np.ndarray], np.ndarray]
WHITEN_EPS = 1e-8  # keeps the division finite when all values are equal; the size lm-human-preferences uses
# As in TRL's GRPO. A smaller one would let a group whose rewards differ by 1e-6 count as much as the others.
GROUP_EPS = 1e-4


def at_last_token(rewards: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Put each rollout's reward on the last token that the policy chose.

    Args:
        rewards: [B], one per rollout.
        mask: [B, T] bool.

    Returns:
        [B, T] float64; a row without any True stays 0.
    """
    assert rewards.shape == mask.shape[:1], f"rewards {rewards.shape} do not fit mask {mask.shape}"
    token_rewards = np.zeros(mask.shape)  # [B, T]
    rows = np.flatnonzero(mask.any(axis=1))
    last = mask.shape[1] - 1 - np.argmax(mask[rows, ::-1], axis=1)
    token_rewards[rows, last] = rewards[rows]
    return token_rewards


def at_turn_ends(rewards: np.ndarray, turn_rewards: np.ndarray | None, mask: np.ndarray) -> np.ndarray:
    """Put the share of each turn on the turn's last token, and what they leave of the reward on the rollout's last.

    Args:
        rewards: [B], one per rollout.
        turn_rewards: [B, T], see ``Batch``; None for no shares.
        mask: [B, T] bool.

    Returns:
        [B, T] float64. The sum of a row is its reward, whatever its turns earned of it.
    """
    if turn_rewards is None:
        return at_last_token(rewards, mask)
    token_rewards: np.ndarray = turn_rewards + at_last_token(rewards - turn_rewards.sum(axis=1), mask)
    return token_rewards


def at_every_token(advantages: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Give every token that the policy chose the advantage of its rollout: [B] and mask [B, T] to [B, T]."""
    return np.where(mask, advantages[:, None], 0.0)


def penalised_rewards(
    rewards: np.ndarray, logprobs: np.ndarray, ref_logprobs: np.ndarray | None, kl_coef: float, mask: np.ndarray
) -> np.ndarray:
    """Make token rewards: the KL penalty at every token, the reward at the last.

    The penalty is k1 alone: as a reward, k2, k3 and the exact KL do not pull the policy back (docs/log.md,
    2026-11-20).

    Args:
        rewards: [B].
        logprobs: [B, T], of the policy that sampled, nats.
        ref_logprobs: [B, T], of the reference, nats; None where there is none, and then ``kl_coef`` must be 0.
        kl_coef: >= 0, reward paid per nat.
        mask: [B, T] bool.

    Returns:
        [B, T] float64. The sum of a row is its reward less its share of the KL.

    Source:
        Ziegler et al., "Fine-Tuning Language Models from Human Preferences" (arXiv 1909.08593), equation 2.
    """
    token_rewards = at_last_token(rewards, mask)
    if kl_coef == 0:
        return token_rewards
    assert ref_logprobs is not None, "a KL penalty needs log-probs of the reference"
    return token_rewards - kl_coef * np.where(mask, kl.k1(np, logprobs, ref_logprobs), 0.0)


def overlong_penalty(lengths: np.ndarray, limit: int, buffer: int) -> np.ndarray:
    """Punish completions that come close to the length limit, rising evenly from 0 to -1 over the buffer.

    A completion that is cut off is rewarded for its first part only, which says little about the whole answer. The
    penalty makes the policy stop before that happens.

    Args:
        lengths: [B], tokens of each completion.
        limit: Longest completion that can be, tokens.
        buffer: In (0, limit], tokens before the limit in which the penalty rises.

    Returns:
        [B] float64, from -1 (``limit`` tokens) to 0 (``limit - buffer`` or fewer); add it to the rewards.

    Source:
        Yu et al., "DAPO" (arXiv 2503.14476), section 3.4, equation 13 (soft overlong punishment).
    """
    assert 0 < buffer <= limit, f"the buffer of {buffer} tokens must lie in (0, {limit}]"
    penalty: np.ndarray = -np.clip((lengths - (limit - buffer)) / buffer, 0.0, 1.0)  # [B]
    return penalty


def gae(
    token_rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute generalised advantage estimates and value targets over the chosen tokens.

    With V(after the last chosen token) = 0 and steps counted in chosen tokens:

        delta_t = r_t + gamma * V_{t+1} - V_t
        A_t     = delta_t + gamma * lam * A_{t+1}

    Tokens that the policy did not choose (tool output) are no steps of the decision process: the successor of a
    token is the next True position, so a long tool output neither discounts nor bootstraps.

    Args:
        token_rewards: [B, T], reward received for choosing each token.
        values: [B, T], predicted return before the token was chosen.
        mask: [B, T] bool.
        gamma: In [0, 1], discount per chosen token; 1 is usual for language models.
        lam: In [0, 1]. 0 is the one-step TD error (low variance, biased by the values), 1 is return minus value
            (unbiased, high variance); 0.95 to 1 is usual.

    Returns:
        advantages and returns (= advantages + values, the target of the value function), [B, T] float64 each,
        0 outside the mask.

    Source:
        Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation"
        (arXiv 1506.02438), equation 16.
    """
    assert token_rewards.shape == values.shape == mask.shape, (
        f"shapes differ: rewards {token_rewards.shape}, values {values.shape}, mask {mask.shape}"
    )
    assert 0 <= gamma <= 1 and 0 <= lam <= 1, f"gamma {gamma} and lam {lam} must lie in [0, 1]"
    rewards = np.where(mask, token_rewards, 0.0).astype(np.float64)  # [B, T]
    values = np.where(mask, values, 0.0).astype(np.float64)
    advantages = np.zeros(mask.shape)
    next_value = np.zeros(len(mask))  # [B], of the nearest chosen token to the right; 0 once the episode is over
    next_advantage = np.zeros(len(mask))  # [B], of the same token
    for t in reversed(range(mask.shape[1])):
        chosen = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]  # [B]
        next_advantage = np.where(chosen, delta + gamma * lam * next_advantage, next_advantage)
        next_value = np.where(chosen, values[:, t], next_value)
        advantages[:, t] = np.where(chosen, next_advantage, 0.0)
    return advantages, advantages + values


def turn_numbers(mask: np.ndarray) -> np.ndarray:
    """Count the turns of each row: [B, T] int, 0 at the tokens of the first turn, -1 outside the mask."""
    return np.where(mask, np.cumsum(_turn_begins(mask), axis=1) - 1, -1)


def _turn_begins(mask: np.ndarray) -> np.ndarray:
    """Return where a turn begins: [B, T] bool, True at each chosen token behind another one that was not chosen."""
    begins: np.ndarray = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    return begins


def turn_gae(
    token_rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute generalised advantage estimates over turns: a turn is one action, and ``gae``'s steps are turns.

    The reward of a turn is the sum over its tokens, and its value is what was predicted before its first token. All
    tokens of a turn get the advantage of the turn, and the return from the turn on as the target of their value.

    Args:
        token_rewards: [B, T], reward received for choosing each token.
        values: [B, T], predicted return before the token was chosen.
        mask: [B, T] bool.
        gamma: In [0, 1], discount per turn.
        lam: In [0, 1], see ``gae``.

    Returns:
        advantages and returns, [B, T] float64 each, 0 outside the mask.

    Source:
        Zhou et al., "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL" (arXiv 2402.19446), whose
        upper level takes an utterance as one action.
    """
    turns = turn_numbers(mask)  # [B, T]
    turn_rewards = _sum_by_turn(token_rewards, turns)  # [B, K]
    turn_values = _sum_by_turn(np.where(_turn_begins(mask), values, 0.0), turns)
    advantages, returns = gae(turn_rewards, turn_values, _has_turn(turns), gamma, lam)
    return _spread_turns(advantages, turns), _spread_turns(returns, turns)


def turn_advantages(
    token_rewards: np.ndarray, groups: np.ndarray, mask: np.ndarray, gamma: float, scale: Scale
) -> np.ndarray:
    """Compare each turn with the same turn of the group's other episodes, by what was earned from it on.

        G_k = r_k + gamma * G_{k+1},   A_k = scale(G_k - mean of G_k over the episodes of the group that had a turn k)

    With the whole reward at the last turn, no discount, and equally many turns in each episode, this is
    ``group_baseline`` at every token. A turn that only one episode of a group reached has nothing to be compared with,
    and its advantage is 0.

    Args:
        token_rewards: [B, T], reward received for choosing each token.
        groups: [B] int.
        mask: [B, T] bool.
        gamma: In [0, 1], discount per turn.
        scale: ``group_scale`` (the deviation is then that of the turn), ``batch_scale`` or ``unscaled``.

    Returns:
        [B, T] float64, equal at all tokens of a turn, 0 outside the mask.

    Source:
        Zeng et al., "Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Reward Design" (arXiv 2505.11821),
        turn-level advantages; Shao et al., "DeepSeekMath" (arXiv 2402.03300), section 4.1.3, where a token's
        advantage is likewise made of the rewards that follow.
    """
    turns = turn_numbers(mask)
    turn_rewards = _sum_by_turn(token_rewards, turns)  # [B, K]
    # With values of 0 and lambda 1 advantages are returns.
    returns, _ = gae(turn_rewards, np.zeros(turn_rewards.shape), _has_turn(turns), gamma, 1.0)
    rows, numbers = np.nonzero(_has_turn(turns))  # [N] each, of the turns there are
    turn_groups = groups[rows] * turn_rewards.shape[1] + numbers  # one number for each turn of each group
    advantages = np.zeros(turn_rewards.shape)
    advantages[rows, numbers] = scale(group_baseline(returns[rows, numbers], turn_groups), turn_groups)
    return _spread_turns(advantages, turns)


def _has_turn(turns: np.ndarray) -> np.ndarray:
    """Return which turns a row has: [B, K] bool of the numbers [B, T] of turns, K the most turns of a row."""
    last = turns.max(axis=1, initial=-1)[:, None]  # [B, 1]
    numbers: np.ndarray = np.arange(turns.max(initial=-1) + 1)  # [K]
    has_turn: np.ndarray = numbers <= last
    return has_turn


def _sum_by_turn(x: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Return the sums of x [B, T] over the tokens of each turn, [B, K] float64."""
    sums = np.zeros(_has_turn(turns).shape)  # [B, K]
    rows, columns = np.nonzero(turns >= 0)
    np.add.at(sums, (rows, turns[rows, columns]), x[rows, columns])
    return sums


def _spread_turns(x: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Give each token what belongs to its turn: [B, K] to [B, T], 0 outside the mask."""
    spread = np.zeros(turns.shape)
    rows, columns = np.nonzero(turns >= 0)
    spread[rows, columns] = x[rows, turns[rows, columns]]
    return spread


def group_baseline(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Subtract from each reward the mean reward of its group.

    A rollout's own reward is part of its baseline, which shrinks the expected gradient by (n - 1) / n for groups
    of n; ``leave_one_out`` does not.

    Args:
        rewards: [B], finite; unscored rollouts have been dropped.
        groups: [B] int, rows with equal numbers belong together, in any order.

    Returns:
        [B] float64; each group sums to 0, and is exactly 0 where all its rewards are equal.

    Source:
        Shao et al., "DeepSeekMath" (arXiv 2402.03300), section 4.1.2, without the division: see ``group_scale``.
    """
    offsets, sizes = _offsets_and_sizes(rewards, groups)
    baselined: np.ndarray = offsets - _group_sum(offsets, groups) / sizes
    return baselined


def leave_one_out(rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Subtract from each reward the mean reward of the other members of its group (RLOO).

    The baseline does not depend on the rollout it is subtracted from, so the policy gradient stays unbiased.

    Args:
        rewards: [B], finite.
        groups: [B] int.

    Returns:
        [B] float64; 0 for a group of one, which has nothing to be compared with.

    Source:
        Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback
        in LLMs" (arXiv 2402.14740), the RLOO estimator.
    """
    offsets, sizes = _offsets_and_sizes(rewards, groups)
    baseline = (_group_sum(offsets, groups) - offsets) / np.maximum(sizes - 1, 1)  # [B]
    return np.where(sizes > 1, offsets - baseline, 0.0)


def above_mean_of_kept(rewards: np.ndarray, groups: np.ndarray, kept_mask: np.ndarray) -> np.ndarray:
    """Subtract from each reward the mean of the rewards that a filter left in its group.

    Rollouts are compared with the best of their group instead of with all of it. A kept rollout below the mean of the
    kept is pushed down, and if all kept are equal, nothing is learned, however bad the others were.

    Args:
        rewards: [B], finite.
        groups: [B] int.
        kept_mask: [B] bool.

    Returns:
        [B] float64. The advantages of the kept sum to 0 in each group, and are 0 where a single rollout is kept.
    """
    advantages = np.zeros(len(rewards))
    if kept_mask.any():
        advantages[kept_mask] = group_baseline(rewards[kept_mask], groups[kept_mask])
    return advantages


def best_of_group(rewards: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Mark the ``count`` highest rewards of each group; of equal rewards the first comes first.

    Args:
        rewards: [B], finite.
        groups: [B] int.
        count: >= 1.

    Returns:
        [B] bool; True for a whole group that has no more than ``count``.
    """
    assert count >= 1, f"count {count} must be at least 1"
    order = np.lexsort((np.arange(len(rewards)), -rewards, groups))  # by group, the best first
    _, starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    rank = np.arange(len(rewards)) - np.repeat(starts, sizes)  # in the group
    best = np.zeros(len(rewards), bool)  # [B]
    best[order] = rank < count
    return best


def exponential_weights(rewards: np.ndarray, groups: np.ndarray, temperature: float) -> np.ndarray:
    """Weigh rollouts by the exponential of their reward, so that a group's weights have the mean 1.

        w_i = exp(r_i / temperature) / mean_j exp(r_j / temperature)

    These are importance weights of the policy exp(r / temperature) * p on a group of samples of p. They are normalised
    over the group, because rewards compare answers to one problem only: over the batch, easy problems would get all
    the weight.

    Args:
        rewards: [B], finite.
        groups: [B] int.
        temperature: > 0, in units of the reward; towards 0 only the best count, at a large one all count the same.

    Returns:
        [B] float64, >= 0; 1 everywhere in a group of equal rewards.

    Source:
        Peters and Schaal, "Reinforcement Learning by Reward-Weighted Regression for Operational Space Control" (ICML
        2007), the exponential transformation; Peng et al., "Advantage-Weighted Regression" (arXiv 1910.00177), whose
        baseline cancels in the normalisation.
    """
    assert temperature > 0, f"temperature {temperature} must be above 0"
    _, index = np.unique(groups, return_inverse=True)
    highest = np.full(index.max() + 1, -np.inf)  # [G]
    np.maximum.at(highest, index, rewards)
    raw = np.exp((rewards - highest[index]) / temperature)  # no overflow: at most 1
    weights: np.ndarray = raw * _group_sum(np.ones(len(groups)), groups) / _group_sum(raw, groups)
    return weights


def group_scale(advantages: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Divide advantages by the standard deviation of their group.

    Rewards of any scale then give updates of the same size. So do problems whose rewards hardly differ: very easy and
    very hard problems gain weight. Leave this out to keep the reward's own scale.

    Args:
        advantages: [B], centred by ``group_baseline`` or ``leave_one_out``.
        groups: [B] int.

    Returns:
        [B] float64; 0 for a group with equal rewards and for a group of one.

    Source:
        Shao et al., "DeepSeekMath" (arXiv 2402.03300), section 4.1.2 (outcome supervision). The paper leaves the
        kind of deviation open; this is the one over n - 1, as in TRL and verl.
    """
    squares = _group_sum(group_baseline(advantages, groups) ** 2, groups)  # [B], each row its group's
    sizes = _group_sum(np.ones(len(groups)), groups)
    deviation = np.sqrt(squares / np.maximum(sizes - 1, 1))
    scaled: np.ndarray = advantages / (deviation + GROUP_EPS)
    return scaled


def batch_scale(advantages: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Divide advantages by their standard deviation over the whole batch.

    Rewards of any scale give updates of the same size, as with ``group_scale``, but very easy and very hard problems
    gain no weight, and no group is divided by the noise of its own few rewards.

    Args:
        advantages: [B], centred by ``group_baseline`` or ``leave_one_out``.
        groups: [B] int, not used.

    Returns:
        [B] float64; 0 where all advantages are 0.

    Source:
        Hu et al., "REINFORCE++" (arXiv 2501.03262), the variant with baseline: the advantages that are left when the
        group's mean is taken out, normalised over the global batch.
    """
    scaled: np.ndarray = advantages / (np.std(advantages) + WHITEN_EPS)
    return scaled


def unscaled(advantages: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Leave advantages as they are, in units of the reward.

    Args:
        advantages: [B].
        groups: [B] int, not used.

    Returns:
        ``advantages``.

    Source:
        Liu et al., "Understanding R1-Zero-Like Training" (arXiv 2503.20783), section 3.2 (Dr. GRPO): dividing by the
        group's deviation weighs problems by how easy or hard they are.
    """
    return advantages


def whiten(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Shift and scale to mean 0 and standard deviation 1 over the mask.

    This is for advantages. Rewards keep their mean instead (``scale_to_unit_std``): before the values are learned, the
    mean is what says whether an episode was worth anything.

    Args:
        x: [B, T].
        mask: [B, T] bool.

    Returns:
        [B, T] float64, 0 outside the mask; all 0 where x is the same everywhere.

    Source:
        OpenAI's lm-human-preferences, ``utils/core.py``, ``whiten``; here the epsilon is added to the deviation,
        not to the variance, so that it matters only below 1e-8.
    """
    deviations, _, std = _moments(x, mask)
    return deviations / (std + WHITEN_EPS)


def scale_to_unit_std(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Scale to standard deviation 1 over the mask around an unchanged mean.

    The scaling is around the mean, not around 0: a token whose reward was 0 does not stay at 0.

    Args:
        x: [B, T].
        mask: [B, T] bool.

    Returns:
        [B, T] float64, 0 outside the mask; x unchanged where it is the same everywhere.

    Source:
        OpenAI's lm-human-preferences, ``utils/core.py``, ``whiten(shift_mean=False)``, applied to rewards.
    """
    deviations, mean, std = _moments(x, mask)
    return np.where(mask, deviations / (std + WHITEN_EPS) + mean, 0.0)


def _group_sum(x: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return for each row the sum of x [B] over its group, [B]."""
    _, index = np.unique(groups, return_inverse=True)
    return np.bincount(index, weights=x)[index]


def _offsets_and_sizes(rewards: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rewards [B] measured from the first reward of their group, and the size of each row's group [B].

    Baselines do not care where rewards are measured from, but rounding does: the mean of three times 0.1 is not
    0.1, and ``group_scale`` would divide what is left over by next to nothing.
    """
    assert rewards.shape == groups.shape, f"rewards {rewards.shape} do not fit groups {groups.shape}"
    assert np.isfinite(rewards).all(), "rewards must be finite; drop unscored rollouts first"
    _, first, index, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    return rewards.astype(np.float64) - rewards[first][index], sizes[index]


def _moments(x: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return x minus its mean (0 outside the mask) [B, T], the mean, and the standard deviation over the mask.

    Measured from the first masked value, so that equal values deviate by exactly 0.
    """
    assert x.shape == mask.shape, f"x {x.shape} does not fit mask {mask.shape}"
    chosen = x[mask].astype(np.float64)  # [N]
    if chosen.size == 0:
        return np.zeros(mask.shape), 0.0, 0.0
    offsets = chosen - chosen[0]
    deviations = np.zeros(mask.shape)
    deviations[mask] = offsets - offsets.mean()
    return deviations, float(chosen[0] + offsets.mean()), float(offsets.std())
