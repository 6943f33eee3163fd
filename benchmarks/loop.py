"""What the training loop costs over bare torch code: `python benchmarks/loop.py [--threads 1]`.

Both sides train the same LEM at the sMNIST shape (784 steps, batch 128, 128 units) on the same batches. They are
verified first: after the same updates the weights agree. Then they are timed in turns, by the processor time of the
process, which a busy machine disturbs less than the clock; the table gives the median of the repeats, their spread,
and the overhead as the median of the ratios of neighbours.
"""

import argparse
import statistics
import time

import torch
from torch.nn import functional

from lem.nn.model import SequenceModel
from lem.training.data import ArraySplit
from lem.training.loop import fit

STEPS, BATCH, UNITS, CLASSES = 784, 128, 128, 10
LEARNING_RATE, CLIP = 0.0018, 1.0


def network():
    torch.manual_seed(0)
    return SequenceModel("lem", 1, UNITS, CLASSES, dt=0.21)


def loop(model, data, updates):
    """`fit`, up to the moment before it would evaluate; returns the processor time."""
    done = []
    began = time.process_time()
    fit(
        model,
        data,
        data,
        loss="cross_entropy",
        metric="accuracy",
        batch_size=BATCH,
        epochs=1,
        learning_rate=LEARNING_RATE,
        clip_norm=CLIP,
        report=lambda event: done.append(0),
        should_stop=lambda: len(done) == updates,
    )
    return time.process_time() - began


def bare(model, data, updates):
    """Forward, backward, clip, step: nothing else; returns the processor time."""
    began = time.process_time()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for step in range(updates):
        batch = data.batch(step, BATCH, 0, 0)
        prediction, _ = model(batch.inputs)
        loss = functional.cross_entropy(prediction, batch.targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        loss.item()
    return time.process_time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates", type=int, default=10, help="a repeat (default 10)")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    count = (options.updates + 1) * BATCH
    inputs = torch.rand(count, STEPS, 1, generator=generator)
    data = ArraySplit(inputs, torch.randint(CLASSES, (count,), generator=generator))

    one, other = network(), network()
    loop(one, data, 2)
    bare(other, data, 2)
    worst = max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters()))
    assert worst < 1e-5, f"the two sides do not train the same model: weights differ by {worst:g}"
    print(f"verified: weights after two updates differ by at most {worst:.1e}")

    times = {"fit": [], "bare torch": []}
    for repeat in range(options.repeats):  # in turns, so that a busy moment hits both
        sides = [("fit", loop), ("bare torch", bare)]
        for name, side in sides if repeat % 2 == 0 else sides[::-1]:
            times[name].append(side(network(), data, options.updates) / options.updates)
    print(
        f"torch {torch.__version__}, {options.threads} threads, {options.repeats} repeats of {options.updates} updates"
    )
    for name, values in times.items():
        low, middle, high = (1e3 * value for value in (min(values), statistics.median(values), max(values)))
        print(f"{name:12} {middle:8.2f} ms an update  ({low:.2f} to {high:.2f})")
    ratios = [a / b for a, b in zip(times["fit"], times["bare torch"])]
    print(f"overhead of the loop: {100 * (statistics.median(ratios) - 1):+.1f} %  (median of the ratios of neighbours)")


if __name__ == "__main__":
    main()
