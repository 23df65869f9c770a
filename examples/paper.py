"""Algorithm 1 of the paper, written out, on scikit-learn's 8 × 8 digits: under a minute on one core.

Matrix-learning fits the rates of the forward process; Score-learning fits a network for the ratios that reverse it;
Eq. 10 estimates the data's marginals from the model's own samples; and again. `dmb.train` does the same, with averaged
weights, learning rates that fall, evaluation, checkpoints, and several devices.
"""

import argparse
import math
from collections.abc import Sequence

import torch

import dmb

CHAINS = 256  # samples for an estimate of the marginals


def main(arguments: Sequence[str] | None = None) -> None:
    """Run Algorithm 1 and print what each cycle has done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--matrix-steps", type=int, default=600)
    parser.add_argument("--score-steps", type=int, default=300)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    data = dmb.data.load("digits")
    mu = data.marginals()

    # Eq. 3 for every pixel, states in the order of their grey: only the clock of the top state runs, at rate 1; all
    # others sleep at 1e-10. Time follows the rates, and ends where the clocks have run for log 1000, as in the paper
    process = dmb.BridgeProcess.from_marginals(
        mu, order="natural", floor=0.0, learn="linear", schedule=dmb.Canonical(end=math.log(1000))
    )
    bridge = dmb.MarkovBridge(process, dmb.MLP(process, width=128, blocks=2))
    rates = list(process.parameters())
    matrix_optimiser = torch.optim.AdamW(rates, lr=1e-3, weight_decay=0.01)
    score_optimiser = torch.optim.AdamW(bridge.network.parameters(), lr=3e-3)

    def state_of_matrix_learning() -> str:
        j_q = bridge.prior_loss(mu).item() / data.num_positions / math.log(2)
        return f"{j_q:12.1e}{process.alpha.min():10.1e} to {process.alpha.max():4.2f}"

    print("       KL(μ||p_0)   before: J_Q and rates        after: J_Q and rates        bound, bits per pixel")
    weights = torch.rand(data.num_states, generator=generator).expand_as(mu)
    p_0 = weights / weights.sum(-1, keepdim=True)  # line 1: one random vector for all positions
    for cycle in range(1, options.cycles + 1):  # line 2; lines 15 to 17 would never end it, see docs/errata.md
        process.set_marginals(p_0)
        kl = torch.xlogy(mu, mu / p_0).sum(-1).mean().item() / math.log(2)

        before = state_of_matrix_learning()
        for _ in range(options.matrix_steps):  # lines 4 to 8, Matrix-learning: J_Q is exact, so it needs no batch
            matrix_optimiser.zero_grad()
            bridge.prior_loss(mu).backward()  # Eq. 5
            torch.nn.utils.clip_grad_norm_(rates, 1.0)
            matrix_optimiser.step()
            process.normalise()  # no rate below 1e-10, from where it can wake

        after = state_of_matrix_learning()
        for _ in range(options.score_steps):  # lines 9 to 13, Score-learning: the rates stay as they are
            x_0 = data.train[torch.randint(len(data.train), (64,), generator=generator)]  # line 3
            score_optimiser.zero_grad()
            bridge.loss(x_0, generator=generator).mean().backward()  # Eq. 8
            score_optimiser.step()

        # line 14: Eq. 10, and one more chain that could end anywhere, so that no state of the data is impossible
        p_0 = bridge.estimate_marginals(chains=CHAINS, generator=generator)
        p_0 = (CHAINS * p_0 + 1 / data.num_states) / (CHAINS + 1)
        bound = bridge.bound(data.test, samples=8, generator=generator)  # Eq. 9
        print(f"cycle {cycle}{kl:11.4f}{before}{after}{bound.bits_per_token:12.4f} ± {bound.stderr:.4f}")


if __name__ == "__main__":
    main()
