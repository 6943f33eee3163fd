"""A damped pendulum observed at random times: `python benchmarks/pendulum.py [--json FILE] [--seeds N]`.

Gaps between observations are uniform in [0.5, 2] nominal steps in training and validation; the test has the same range,
and [0.2, 5]. Two tasks: the model sees an angle and the gap before it, and predicts the angle one nominal step later
("step"); or it sees an angle and the gap after it, and predicts the next observation ("next"). The same LEM, with the
same budget, takes the gap as `elapsed`, as one more input channel, or not at all.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from lem.nn.model import SequenceModel
from lem.training.data import ArraySplit, mix
from lem.training.loop import evaluate, fit

STEPS, TRAIN, HELD = 80, 512, 256
TASKS = ("step", "next")
STIFFNESS, DAMPING = math.pi**2, 0.3
SUBSTEPS = 40
WAYS = ("elapsed", "channel", "ignored")


def swing(angle: Tensor, speed: Tensor, seconds: Tensor) -> tuple[Tensor, Tensor]:
    """Return angle and speed of the pendulum after some time, by the classical Runge-Kutta method."""

    def slope(a: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return v, -STIFFNESS * torch.sin(a) - DAMPING * v

    h = seconds / SUBSTEPS
    for _ in range(SUBSTEPS):
        a1, v1 = slope(angle, speed)
        a2, v2 = slope(angle + h / 2 * a1, speed + h / 2 * v1)
        a3, v3 = slope(angle + h / 2 * a2, speed + h / 2 * v2)
        a4, v4 = slope(angle + h * a3, speed + h * v3)
        angle = angle + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
        speed = speed + h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)
    return angle, speed


def observe(count: int, nominal: float, low: float, high: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return angles (sample, step + 1), those one nominal step after each, and the gaps between observations.

    Gaps (sample, step) are in nominal steps.
    """
    generator = torch.Generator().manual_seed(seed)
    angle = 4.0 * torch.rand(count, dtype=torch.float64, generator=generator) - 2.0
    speed = 2.0 * torch.randn(count, dtype=torch.float64, generator=generator)
    gaps = low + (high - low) * torch.rand(count, STEPS, dtype=torch.float64, generator=generator)
    angles, ahead = [angle], [swing(angle, speed, torch.tensor(nominal))[0]]
    for step in range(STEPS):
        angle, speed = swing(angle, speed, nominal * gaps[:, step])
        angles.append(angle)
        ahead.append(swing(angle, speed, torch.tensor(nominal))[0])
    return torch.stack(angles, dim=1), torch.stack(ahead, dim=1), gaps


def split(angles: Tensor, ahead: Tensor, gaps: Tensor, task: str, way: str) -> ArraySplit:
    """Return what a model sees, and what it is to predict."""
    if task == "step":  # an angle and the gap before it; then the angle one nominal step later
        seen, wanted, gaps = angles, ahead, torch.cat([torch.ones_like(gaps[:, :1]), gaps], dim=1)
    else:  # an angle and the gap after it; then the angle there
        seen, wanted = angles[:, :-1], angles[:, 1:]
    channels = [torch.sin(seen), torch.cos(seen)]
    if way == "channel":
        channels.append(gaps)
    target = torch.stack([torch.sin(wanted), torch.cos(wanted)], dim=2)
    elapsed = gaps.float() if way == "elapsed" else None
    return ArraySplit(torch.stack(channels, dim=2).float(), target.float(), every_step=True, elapsed=elapsed)


def run(task: str, way: str, nominal: float, seed: int, epochs: int) -> dict[str, object]:
    """Train in one way; return the errors on the test sets."""
    near = [observe(count, nominal, 0.5, 2.0, mix(seed, k)) for k, count in enumerate((TRAIN, HELD, HELD))]
    far = observe(HELD, nominal, 0.2, 5.0, mix(seed, 3))
    train, valid, test = (split(*part, task, way) for part in near)
    torch.manual_seed(seed)
    model = SequenceModel("lem", train.inputs.shape[2], 32, 2, every_step=True, dt=1.0)
    start = time.process_time()
    progress = fit(
        model, train, valid, loss="mse", metric="rmse", batch_size=32, epochs=epochs, learning_rate=1e-2,
        schedule="one-cycle", clip_norm=1.0, seed=seed,
    )  # fmt: skip
    return {
        "task": task,
        "way": way,
        "nominal step, s": nominal,
        "seed": seed,
        "parameters": model.count_parameters()["all"],
        "valid": progress.best,
        "test, gaps as in training": evaluate(model, test, metric="rmse", batch_size=HELD),
        "test, wider gaps": evaluate(model, split(*far, task, way), metric="rmse", batch_size=HELD),
        "processor seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    """Train all, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--nominal", type=float, default=0.25, help="s; small swings have a period of 2 s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = []
    for seed in range(arguments.seeds):
        for task in TASKS:
            for way in WAYS:
                runs.append(run(task, way, arguments.nominal, seed, arguments.epochs))
                print(runs[-1], flush=True)
    ratios = {}
    for task in TASKS:
        for score in ("test, gaps as in training", "test, wider gaps"):
            found = {way: [r[score] for r in runs if (r["task"], r["way"]) == (task, way)] for way in WAYS}
            for way in WAYS[1:]:
                ratio = statistics.median(a / b for a, b in zip(found["elapsed"], found[way]))
                ratios[f"elapsed / {way}, {task}, {score}"] = ratio
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f}")
    if arguments.json:
        about = {"torch": torch.__version__, "threads": 1, "epochs": arguments.epochs, "seeds": arguments.seeds}
        arguments.json.write_text(json.dumps({**about, "median ratios": ratios, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
