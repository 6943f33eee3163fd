"""Google12: mel features from the formula, clips and lists, silence, and the real recordings."""

import wave

import numpy as np
import pytest

from lem.tasks.google12 import LABELS, RATE, features, google12, list_clips, read_wave
from lem.training.data import DataError
from tests.close import assert_close
from tests.tasks.real import needs


def write(path, sound, rate=RATE, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.asarray(sound) * 32767).astype("<i2").tobytes())


def mel_by_formula(sound, twin=""):
    """The same features written out: Slaney's scale, Hann window, Fourier sums by NumPy, in double precision.

    A `twin` is wrong in one place, for the test that must catch it.
    """

    def hertz_to_mel(f):
        return np.where(f < 1000.0, 3.0 * f / 200.0, 15.0 + 27.0 * np.log(np.maximum(f, 1e-9) / 1000.0) / np.log(6.4))

    def mel_to_hertz(m):
        return np.where(m < 15.0, 200.0 * m / 3.0, 1000.0 * np.exp(np.log(6.4) * (m - 15.0) / 27.0))

    padded = np.pad(sound.astype(np.float64), 512, mode="constant" if twin == "padding" else "reflect")
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(1024) / 1024)
    frames = [padded[i * 128 : i * 128 + 1024] * window for i in range(1 + len(sound) // 128)]
    spectrum = np.abs(np.fft.rfft(np.stack(frames), axis=1)) ** (2 if twin == "power" else 1)
    edges = mel_to_hertz(np.linspace(hertz_to_mel(np.float64(40.0)), hertz_to_mel(np.float64(8000.0)), 82))
    bins = np.arange(513) * RATE / 1024
    bands = np.zeros((80, 513))
    for b in range(80):
        low, middle, high = edges[b : b + 3]
        bands[b] = np.maximum(0.0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))
        bands[b] *= 1.0 if twin == "area" else 2.0 / (high - low)
    mel = spectrum @ bands.T
    decibels = 10.0 * np.log10(np.maximum(1e-10, mel)) - 10.0 * np.log10(mel.max())
    decibels = np.maximum(decibels, decibels.max() - 80.0)[:126]
    filled = np.vstack([decibels, np.zeros((126 - len(decibels), 80))])
    return (filled - filled.mean()) / filled.std(ddof=1)


@pytest.mark.parametrize("length", [RATE, 9000])
def test_features_follow_the_formula(length):
    time = np.arange(length) / RATE
    rng = np.random.default_rng(0)
    sound = 0.3 * np.sin(2 * np.pi * 440 * time) + 0.2 * np.sin(2 * np.pi * 3100 * time) * (time > 0.3)
    sound = (sound + 0.05 * rng.normal(size=length)).astype(np.float32)
    mine = features(sound)
    assert mine.shape == (126, 80)
    assert mine.dtype == np.float32
    assert_close(mine, mel_by_formula(sound), kind="features")


@pytest.mark.parametrize("twin", ["padding", "power", "area"])
def test_wrong_features_would_be_caught(twin):
    sound = np.random.default_rng(0).normal(size=RATE).astype(np.float32) * np.linspace(0.0, 0.1, RATE)
    assert_close(features(sound), mel_by_formula(sound), kind="features")
    with pytest.raises(AssertionError):
        assert_close(features(sound), mel_by_formula(sound, twin), kind="features")


def test_silent_sound_has_finite_features():
    assert np.isfinite(features(np.zeros(RATE, dtype=np.float32))).all()


def test_other_sounds_are_refused(tmp_path):
    write(tmp_path / "fast.wav", [0.0] * 10, rate=44_100)
    with pytest.raises(DataError, match="one channel of 16 bits at 16 kHz"):
        read_wave(tmp_path / "fast.wav")
    for content in (b"", b"RIFF", b"RIFF\x00\x00\x00\x00WAVEfmt "):
        (tmp_path / "x.wav").write_bytes(content)
        with pytest.raises(DataError, match="must be a wave file"):
            read_wave(tmp_path / "x.wav")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEM_DATA", str(tmp_path))
    root = tmp_path / "speech_commands"
    rng = np.random.default_rng(0)
    for word in ("yes", "no", "marvin"):
        for i in range(4):
            write(root / word / f"{i}_nohash_0.wav", 0.1 * rng.normal(size=RATE - 100 * i).clip(-3, 3))
    write(root / "_background_noise_" / "hum.wav", 0.1 * rng.normal(size=10 * RATE + 5).clip(-3, 3))
    (root / "validation_list.txt").write_text("yes/1_nohash_0.wav\nmarvin/1_nohash_0.wav\n")
    (root / "testing_list.txt").write_text("no/2_nohash_0.wav\nyes/2_nohash_0.wav\n")
    return root


def test_lists_labels_and_silence(folder):
    train, valid, test = list_clips(folder)
    names = [LABELS[clip.label] for clip in train]
    assert names.count("unknown") == 3
    assert names.count("yes") == 2
    assert names.count("no") == 3
    assert [names.count("silence"), *([LABELS[c.label] for c in s].count("silence") for s in (valid, test))] == [
        8,
        1,
        1,
    ]
    assert [clip.path for clip in valid[:2]] == ["marvin/1_nohash_0.wav", "yes/1_nohash_0.wav"]
    places = [(clip.path, clip.start) for split in (train, valid, test) for clip in split]
    assert len(places) == len(set(places)) == 22
    assert [c.start // RATE for c in (*train, *valid, *test) if c.label == 1] == list(range(10))


def test_listed_silence_is_used_instead_of_cut_silence(folder):
    write(folder / "_silence_" / "7.wav", [0.0] * RATE)
    with (folder / "testing_list.txt").open("a") as out:
        out.write("_silence_/7.wav\n")
    train, valid, test = list_clips(folder)
    assert [clip.path for clip in test if LABELS[clip.label] == "silence"] == ["_silence_/7.wav"]
    assert [sum(LABELS[c.label] == "silence" for c in s) for s in (train, valid)] == [8, 1]


def test_a_listed_clip_that_is_missing_is_named(folder):
    (folder / "yes/1_nohash_0.wav").unlink()
    with pytest.raises(DataError, match=r"yes/1_nohash_0\.wav is missing"):
        list_clips(folder)


def test_the_task_tells_that_it_is_a_subset(folder):
    task = google12()
    assert (task.facts.sizes, task.facts.subset_of) == ((8, 2, 2), (84843, 9981, 11005))
    assert task.facts.cut_silence == (8, 1, 1)
    assert task.train.batch(0, 4, 0, 0).inputs.shape == (126, 4, 80)
    assert len(task.test()) == 3


@needs("google12")
def test_real_recordings():
    train, valid, test = list_clips_of_the_data()
    for split in (train, valid, test):
        assert {LABELS[clip.label] for clip in split} == set(LABELS)
    assert not {c.path for c in train if c.start == 0} & {c.path for c in (*valid, *test) if c.label != 1}


def list_clips_of_the_data():
    from lem.tasks.fetch import fetch
    from lem.tasks.google12 import SOURCE

    return list_clips(fetch(SOURCE)["speech_commands/validation_list.txt"].parent)
