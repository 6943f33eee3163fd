"""Google12: one second of speech, 126 frames of 80 mel bands, one of twelve labels (Speech Commands V2).

The labels are ten words, "unknown" for the other 25, and "silence". The publisher's lists name the validation and test
clips; all others are for training. A frame is 80 mel bands of the magnitude spectrum (1024 samples every 128, 40 Hz to
8 kHz) in decibels below the clip's loudest; each clip is then standardised as a whole.

Differs from the authors' code: silence is cut from the noise recordings in pieces of one second (of each recording the
first 80 % for training, then 10 % and 10 %), where theirs gives each whole recording once, and only to training.
"""

import json
import wave
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lem.extras import extra
from lem.tasks.base import DataFacts, Task
from lem.tasks.cache import prepared
from lem.tasks.fetch import Bar, Download, Source, fetch
from lem.training.data import ArraySplit, DataError

LABELS = ("unknown", "silence", "yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
PUBLISHED = (84_843, 9_981, 11_005)
RATE, FRAMES, BANDS = 16_000, 126, 80
NOISE, SILENCE = "_background_noise_", "_silence_"

SOURCE = Source(
    "google12",
    "https://arxiv.org/abs/1804.03209",
    "CC BY 4.0",
    (
        Download(
            (
                "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
                "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
            ),
            {"speech_commands/validation_list.txt": None, "speech_commands/testing_list.txt": None},
            2_428_923_189,
            folder="speech_commands",
            unpacked=5_000_000_000,
            sha256="af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        ),
    ),
)


class Clip(NamedTuple):
    """One second of sound: a file, the sample it starts at, and its label's number."""

    path: str
    start: int
    label: int


def read_wave(path: Path) -> np.ndarray:
    """Read a 16-bit mono 16 kHz file as numbers in [-1, 1)."""
    try:
        with wave.open(str(path), "rb") as sound:
            kind = sound.getnchannels(), sound.getsampwidth(), sound.getframerate()
            content = sound.readframes(sound.getnframes())
    except (wave.Error, EOFError, RuntimeError, ZeroDivisionError) as error:
        raise DataError(f"{path.name} must be a wave file: {str(error) or 'a chunk ends too early'}.") from error
    if kind != (1, 2, RATE):
        raise DataError(f"{path.name} must have one channel of 16 bits at 16 kHz; got {kind} channels, bytes, Hz.")
    return np.frombuffer(content[: len(content) // 2 * 2], dtype="<i2").astype(np.float32) / 32768.0


def _librosa() -> Any:
    return extra("librosa", "The google12 task needs")


@cache
def _bands() -> np.ndarray:
    """Return the weights of the mel bands, (80, 513)."""
    bands: np.ndarray = _librosa().filters.mel(sr=RATE, n_fft=1024, n_mels=BANDS, fmin=40.0, fmax=RATE / 2)
    return bands


def features(sound: np.ndarray) -> np.ndarray:
    """Return the (126, 80) standardised mel spectrogram of one clip."""
    librosa = _librosa()
    # Reflection at the ends was librosa's default when the authors used it.
    spectrum = np.abs(librosa.stft(sound, n_fft=1024, hop_length=128, pad_mode="reflect"))
    decibels = librosa.power_to_db(_bands() @ spectrum, ref=np.max)[:, :FRAMES]
    # Short clips are filled up with 0, which is as loud as their loudest: the authors' way.
    filled = np.zeros((BANDS, FRAMES), dtype=np.float32)
    filled[:, : decibels.shape[1]] = decibels
    spread = filled.std(ddof=1, dtype=np.float64)
    return ((filled - filled.mean(dtype=np.float64)) / (spread if spread > 0 else 1.0)).T.astype(np.float32)


def list_clips(folder: Path) -> tuple[list[Clip], list[Clip], list[Clip]]:
    """Return the clips for training, validation and test, in a fixed order."""
    listed = [
        (folder / name).read_text(encoding="utf-8").split() for name in ("validation_list.txt", "testing_list.txt")
    ]
    held = {name for names in listed for name in names}
    words = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "_")))
    rest = [
        name
        for word in words
        for p in sorted((folder / word).glob("*.wav"))
        if (name := f"{word}/{p.name}") not in held
    ]
    splits = [[Clip(name, 0, _label(name)) for name in names] for names in (rest, *map(sorted, listed))]
    if missing := [clip.path for split in splits for clip in split if not (folder / clip.path).is_file()]:
        raise DataError(f"The speech commands must hold all {len(held)} listed clips; {missing[0]} is missing.")
    # Where the lists name clips of silence, as those of the official test set do, no other is cut for that split.
    given = [any(clip.label == LABELS.index("silence") for clip in split) for split in splits]
    for path in sorted((folder / NOISE).glob("*.wav")):
        pieces = len(read_wave(path)) // RATE
        for piece in range(pieces):
            which = min(max(piece * 10 // pieces - 7, 0), 2)
            if not given[which]:
                splits[which].append(Clip(f"{NOISE}/{path.name}", piece * RATE, LABELS.index("silence")))
    return splits[0], splits[1], splits[2]


def _label(name: str) -> int:
    word = name.split("/")[0]
    return LABELS.index("silence" if word == SILENCE else word if word in LABELS else "unknown")


def _split(folder: Path, which: str, clips: list[Clip]) -> ArraySplit:
    key = [[*clip, (folder / clip.path).stat().st_size] for clip in clips]

    def make() -> dict[str, Tensor]:
        inputs = torch.empty(len(clips), FRAMES, BANDS)
        with Bar(f"preparing the {which} clips of google12", len(clips), "clips") as bar:
            for i, clip in enumerate(clips):
                sound = read_wave(folder / clip.path)
                inputs[i] = torch.from_numpy(features(sound[clip.start : clip.start + RATE]))
                bar.show(i)
        return {"inputs": inputs, "labels": torch.tensor([clip.label for clip in clips])}

    tensors = prepared(f"google12-{which}", {"clips": json.dumps(key), "version": 1}, make)
    return ArraySplit(tensors["inputs"], tensors["labels"])


def google12() -> Task:
    """Make the Google12 task."""
    folder = fetch(SOURCE)["speech_commands/validation_list.txt"].parent
    train, valid, test = list_clips(folder)
    counts = tuple(sum(not clip.path.startswith(NOISE) for clip in split) for split in (train, valid, test))
    return Task(
        _split(folder, "training", train),
        _split(folder, "validation", valid),
        lambda: _split(folder, "test", test),
        input_size=BANDS,
        output_size=len(LABELS),
        loss="cross_entropy",
        metric="accuracy",
        facts=DataFacts(
            sizes=counts,
            subset_of=None if counts == PUBLISHED else PUBLISHED,
            cut_silence=tuple(len(split) - count for split, count in zip((train, valid, test), counts)),
        ),
    )
