"""The cost of a step on a stream: one stream early and late, nn.LSTM for comparison, and ten thousand streams at once.

    python benchmarks/streaming.py

All do the same work in one thread: 3 channels, a state of 64 units, a readout of 4 numbers; the stream also checks and
standardises its input. Answers are compared with the batch call before anything is timed. CPU time, median and spread
of blocks of steps; written to benchmarks/results/streaming.json. The rows of nn.LSTM are bare: tensors in, tensors out.
"""

import json
import time
from pathlib import Path

import numpy as np
import torch

from lem.atomic import write_atomically
from lem.environment import environment
from lem.timeseries.predictor import Predictor

CHANNELS, HIDDEN, CLASSES, BLOCKS = 3, 64, 4, 9
RESULTS = Path(__file__).parent / "results" / "streaming.json"


def timed(step, count):
    """Return median and spread, in microseconds, of the CPU time of one step over blocks of `count`."""
    blocks = []
    for _ in range(BLOCKS):
        begun = time.process_time()
        for _ in range(count):
            step()
        blocks.append((time.process_time() - begun) / count * 1e6)
    return {
        "median_us": round(float(np.median(blocks)), 1),
        "spread_us": [round(min(blocks), 1), round(max(blocks), 1)],
    }


def main():
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    architecture = {"cell": "lem", "hidden_size": HIDDEN, "pool": "both", "dt": 0.5}
    model = Predictor("classifier", CHANNELS, CLASSES, architecture, labels=np.arange(CLASSES)).eval()
    X = random.normal(size=(1, CHANNELS, 50))
    whole, stepped = model.stream().push(X[0]), model.stream()
    assert np.abs(whole[-1] - model.predict_proba(X)[0]).max() < 1e-6
    assert np.abs(whole - [stepped.push(x) for x in X[0].T]).max() < 1e-6

    sample = random.normal(size=CHANNELS)
    stream = model.stream()
    found = {"one LEM stream, its first steps": timed(lambda: stream.push(sample), 200)}
    for _ in range(100):
        stream.push(random.normal(size=(CHANNELS, 1000)))
    found["the same after 100,000 steps"] = timed(lambda: stream.push(sample), 200)

    lstm, readout = torch.nn.LSTM(CHANNELS, HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)

    def lstm_stepper(given):
        """Return the bare step of nn.LSTM, of as many rows as are given, with its state carried along."""
        state = None

        def step():
            nonlocal state
            with torch.inference_mode():
                outputs, state = lstm(torch.from_numpy(given).float()[None], state)
                return torch.softmax(readout(outputs[0]), dim=-1).numpy()

        return step

    found["nn.LSTM, one step"] = timed(lstm_stepper(sample[None]), 200)

    many = 10_000
    samples = random.normal(size=(many, CHANNELS))
    for title, order in {
        "10,000 LEM streams, one step of all": range(many),
        "the same, named in random order": random.permutation(many).tolist(),
    }.items():
        table = model.streams()
        table.add(*range(many))
        assert np.abs(table.push(order, samples) - model.predict_proba(samples[:, :, None])).max() < 1e-6
        found[title] = timed(lambda: table.push(order, samples), 5)  # noqa: B023
    found["nn.LSTM, one step of 10,000 rows"] = timed(lstm_stepper(samples), 5)
    results = {
        "environment": environment(),
        "steps": found,
        "streams_steps_per_second": round(many / found["10,000 LEM streams, one step of all"]["median_us"] * 1e6),
    }
    write_atomically(RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    print(json.dumps(results["steps"], indent=1), results["streams_steps_per_second"])


if __name__ == "__main__":
    main()
