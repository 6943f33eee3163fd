"""Replace nn.LSTM in a working model by LEM: one word changes. Run: python examples/replace_lstm.py"""

import torch
from torch import nn

from lem import LEM


class Tagger(nn.Module):
    """Say at every step whether the sum of the inputs so far is positive."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.recurrent = layer(1, 32, batch_first=True)  # nn.LSTM stood here
        self.readout = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.recurrent(x)
        return self.readout(outputs)[..., 0]


def main(steps: int = 150) -> dict[str, float]:
    found = {}
    for layer in (nn.LSTM, LEM):
        torch.manual_seed(0)
        model = Tagger(layer)
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(steps):
            x = torch.randn(32, 50, 1)
            truth = (x.cumsum(1)[..., 0] > 0).float()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found[layer.__name__] = loss.item()
        print(f"{layer.__name__:5} loss after {steps} steps: {loss.item():.3f}")
    return found


if __name__ == "__main__":
    main()
