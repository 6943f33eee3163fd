"""Read series sampled at irregular times, with and without their times: python examples/irregular_times.py

Each series is a sine wave of one of two frequencies, sampled after random gaps. The values alone say little about the
frequency; `elapsed` gives the layer the time between samples, which it uses as the length of its steps.
"""

import sys

import torch
from torch import Tensor, nn

from lem import LEM


def waves(count: int, steps: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Return values (count, steps, 1), the time since the previous sample (count, steps), and classes."""
    elapsed = torch.empty(count, steps).exponential_(1.0).clamp(min=0.05)
    label = torch.randint(2, (count,))
    frequency = torch.where(label == 1, 1.3, 0.9)[:, None]
    values = torch.sin(frequency * elapsed.cumsum(1) + 6.3 * torch.rand(count, 1)) + 0.1 * torch.randn(count, steps)
    return values[..., None], elapsed, label


class Classifier(nn.Module):
    def __init__(self, timed: bool) -> None:
        super().__init__()
        self.timed = timed
        self.recurrent = LEM(1, 32, batch_first=True)
        self.readout = nn.Linear(32, 2)

    def forward(self, values: Tensor, elapsed: Tensor) -> Tensor:
        outputs, _ = self.recurrent(values, elapsed=elapsed if self.timed else None)
        return self.readout(outputs[:, -1])


def main(updates: int = 1500, figure: str = "") -> dict[str, float]:
    found, curves = {}, {}
    for name, timed in (("order only", False), ("with elapsed times", True)):
        torch.manual_seed(0)
        model = Classifier(timed)
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        test, curve = waves(1000), []
        for update in range(updates):
            values, elapsed, label = waves(64)
            loss = nn.functional.cross_entropy(model(values, elapsed), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (update + 1) % 50 == 0 or update + 1 == updates:
                with torch.no_grad():
                    accuracy = (model(test[0], test[1]).argmax(1) == test[2]).float().mean().item()
                curve.append((update + 1, 100 * accuracy))
        found[name], curves[name] = accuracy, curve
        print(f"{name:18}: accuracy {accuracy:.3f} on new series")
    if figure:
        draw(figure, curves)
    return found


def draw(path: str, curves: dict[str, list[tuple[int, float]]]) -> None:
    from matplotlib import pyplot as plt

    chart, (left, right) = plt.subplots(1, 2, figsize=(8.0, 2.9), layout="constrained")
    torch.manual_seed(1)
    values, elapsed, _ = waves(1)
    left.plot(elapsed[0].cumsum(0), values[0, :, 0], "o-", color="0.4", lw=0.7, ms=4)
    left.set(xlabel="time", ylabel="value", title="one series")
    for (name, curve), colour in zip(curves.items(), ("0.5", "#1f77b4")):
        right.plot(*zip(*curve), label=name, color=colour)
    right.set(xlabel="update", ylabel="test accuracy in %", title="40 samples a series")
    right.legend(frameon=False, fontsize=8)
    chart.savefig(path, dpi=130)
    plt.close(chart)


if __name__ == "__main__":
    main(figure=sys.argv[1] if len(sys.argv) > 1 else "")
