"""Muon as in optim/muon/muon.h, in PyTorch."""
import torch


def orthogonal(u):
    """Five steps of Newton and Schulz's iteration, with the coefficients of Jordan et al. 2024."""
    x = u / u.norm().clamp(min=1e-7)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def rows_of_pieces(name, weight):
    """Queries, keys and values are matrices of their own, and so are gate and up. Heads have width / heads elements."""
    rows, columns = weight.shape
    if name.endswith(".qkv.weight"):
        return [columns, (rows - columns) // 2, (rows - columns) // 2]
    return [rows // 2, rows // 2] if name.endswith(".gate_up.weight") else [rows]


class Muon(torch.optim.Optimizer):
    """For the matrices of blocks; `others(parameters)` makes the optimizer of everything else."""

    def __init__(self, model, settings, others):
        named = {name: p for name, p in model.named_parameters() if name.startswith("blocks.") and p.dim() == 2}
        self.matrices = [(p, rows_of_pieces(name, p)) for name, p in named.items()]
        self.mu, self.decay = settings["momentum"], settings["weight_decay"]
        super().__init__(list(named.values()), {"lr": settings["lr"]})
        self.others = others([p for p in model.parameters() if all(p is not q for q in named.values())])
        self.param_groups += self.others.param_groups

    @torch.no_grad()
    def step(self):
        self.others.step()
        lr = self.param_groups[0]["lr"]
        for p, rows in self.matrices:
            if p.grad is None:  # frozen
                continue
            m = self.state[p].setdefault("momentum", torch.zeros_like(p))
            m += (1 - self.mu) * (p.grad - m)
            u = p.grad + self.mu * (m - p.grad)
            move = [0.2 * max(piece.shape) ** 0.5 * orthogonal(piece) for piece in u.split(rows)]
            p.copy_((1 - lr * self.decay) * p - lr * torch.cat(move))
