"""Spot keywords in wav files: python examples/keywords.py FOLDER yes no

FOLDER holds one folder of 16 kHz mono wav files per word, as Speech Commands does. Each clip becomes its spectral
energies over time, computed here in a few lines, and is classified by LEM.
"""

import sys
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np

from lem.timeseries import LEMClassifier

FRAME, HOP, BANDS = 400, 160, 20


def energies(path: Path) -> np.ndarray:
    """Return the log energies of a clip: (bands, frames)."""
    with wave.open(str(path)) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768.0
    sound = np.pad(sound, (0, max(0, FRAME - len(sound))))
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::HOP] * np.hanning(FRAME)
    power = np.abs(np.fft.rfft(frames, 512)) ** 2
    # Bands a constant factor wide: low tones are told apart more finely, as the ear does.
    edges = np.unique(np.geomspace(3, 257, BANDS + 1).astype(int))
    return np.log(1e-6 + np.stack([power[:, a:b].mean(1) for a, b in pairwise(edges)]))


def main(folder: str, words: list[str], clips: int = 200, epochs: int = 30) -> float:
    files = [(path, word) for word in words for path in sorted(Path(folder, word).glob("*.wav"))[:clips]]
    X, y = [energies(path) for path, _ in files], np.array([word for _, word in files])
    # The part before "_nohash_" names the speaker: no voice may stand on both sides.
    speakers = np.array([path.name.partition("_")[0] for path, _ in files])
    names = np.random.default_rng(0).permutation(np.unique(speakers))
    test = np.isin(speakers, names[: max(1, len(names) // 5)])
    model = LEMClassifier(epochs=epochs, random_state=0)
    model.fit([x for x, held in zip(X, test) if not held], y[~test])
    accuracy = model.score([x for x, held in zip(X, test) if held], y[test])
    print(f"{len(X)} clips of {', '.join(words)}: accuracy {accuracy:.3f} on {test.sum()} clips of other speakers")
    return accuracy


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["yes", "no"])
