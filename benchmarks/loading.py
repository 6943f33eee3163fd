"""How much of an epoch is spent outside the model: python benchmarks/loading.py [task ...], with LEM_DATA set.

Times in processor time, one thread, so that other programs on the machine do not count: making a batch and checking it
as `fit` does, and the step of training on it (forward, backward, update). Medians of all steps but the first.
"""

import statistics
import sys
import time

import torch

from lem.experiments.runner import build_model, build_task, load_recipe
from lem.training.metrics import LOSSES
from lem.training.update import is_finite

STEPS = 8


def share(name: str) -> tuple[float, float]:
    recipe = load_recipe(f"{name}/lem")
    task = build_task(recipe)
    model = build_model(recipe, task, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    making, learning = [], []
    for step in range(STEPS + 1):
        start = time.process_time()
        batch = task.train.batch(step, recipe.train["batch_size"], epoch=0, seed=0)
        assert is_finite(batch)
        made = time.process_time()
        prediction, _ = model(batch.inputs)
        LOSSES[task.loss](prediction, batch.targets).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        making.append(made - start)
        learning.append(time.process_time() - made)
    # The first step also shuffles the epoch and warms everything up.
    return statistics.median(making[1:]), statistics.median(learning[1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"{'task':12} {'batch, ms':>10} {'step, ms':>10} {'outside':>8}")
    for name in sys.argv[1:] or ("smnist", "psmnist", "ncifar10"):
        making, learning = share(name)
        print(f"{name:12} {1e3 * making:10.2f} {1e3 * learning:10.1f} {making / (making + learning):8.2%}")
