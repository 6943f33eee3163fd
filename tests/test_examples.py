"""Every example runs, shortened where it can be, and does what it says."""

import json
import os
import runpy
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return runpy.run_path(str(EXAMPLES / name))["main"]


def test_every_example_is_tested():
    source = Path(__file__).read_text()
    assert all(f'"{path.name}"' in source for path in EXAMPLES.glob("*.py"))


def test_classify(monkeypatch, tmp_path):
    random, text = np.random.default_rng(0), "@problemName x\n@univariate true\n@classLabel true up down\n@data\n"
    for i in range(40):
        steps = random.integers(5, 15)
        values = random.normal(1.0 if i % 2 else -1.0, 0.5, steps)
        text += ",".join(f"{v:.3f}" for v in values) + (":up\n" if i % 2 else ":down\n")
    (tmp_path / "x.ts").write_text(text)
    path = str(tmp_path / "x.ts")
    assert example("classify.py", monkeypatch)(path, path, epochs=20) > 0.9


def test_forecast(monkeypatch):
    ours, naive = example("forecast.py", monkeypatch)()
    assert ours < 0.8 * naive


def test_anomaly(monkeypatch):
    place, _ = example("anomaly.py", monkeypatch)()
    assert place == 400
    sys.modules.pop("forecast")


def test_pumps(monkeypatch, tmp_path):
    assert example("pumps.py", monkeypatch)(figure=str(tmp_path / "pumps.png")) > 0.8
    assert (tmp_path / "pumps.png").stat().st_size > 10_000


def test_irregular_times(monkeypatch):
    found = example("irregular_times.py", monkeypatch)(updates=150)
    assert found["with elapsed times"] > found["order only"]


def test_time_scales(monkeypatch):
    slow, fast = example("time_scales.py", monkeypatch)(epochs=2)
    assert slow > fast >= 1.0
    sys.modules.pop("forecast")


def test_export_numpy(monkeypatch):
    assert example("export_numpy.py", monkeypatch)(epochs=1) < 1e-5
    sys.modules.pop("forecast")


def test_the_gallery_shows_every_example_as_it_is():
    """The page is what its generator writes from the examples and the stored output; figures are there."""
    gallery = runpy.run_path(str(EXAMPLES.parent / "docs/make_gallery.py"))
    assert {*gallery["GALLERY"], *gallery["WITH_DATA"]} == {path.stem for path in EXAMPLES.glob("*.py")}
    outputs = json.loads(gallery["OUTPUTS"].read_text())
    page = EXAMPLES.parent / "docs/gallery.md"
    assert page.read_text() == gallery["write"](outputs), "run `python docs/make_gallery.py NAME` for what changed"
    for name in filter(gallery["draws"], gallery["GALLERY"]):
        assert (gallery["IMAGES"] / f"gallery-{name}.png").exists()


def test_replace_lstm(monkeypatch):
    found = example("replace_lstm.py", monkeypatch)(steps=3)
    assert set(found) == {"LSTM", "LEM"}


def test_keywords(monkeypatch, tmp_path):
    random = np.random.default_rng(0)
    for word, tone in (("low", 300.0), ("high", 2500.0)):
        (tmp_path / word).mkdir()
        for i in range(15):
            t = np.arange(4000 + 160 * i) / 16000.0
            sound = np.sin(2 * np.pi * tone * random.uniform(0.8, 1.2) * t) + random.normal(0, 0.1, len(t))
            with wave.open(str(tmp_path / word / f"speaker{i}_nohash_0.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16000)
                file.writeframes((8000 * sound).astype(np.int16).tobytes())
    assert example("keywords.py", monkeypatch)(str(tmp_path), ["low", "high"], epochs=10) > 0.8


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [("BasicMotions", 0.95), ("JapaneseVowels", 0.95), ("ItalyPowerDemand", 0.94), ("GunPoint", 0.90)],
)
def test_classify_real_sets(name, least, monkeypatch):
    folder = Path(os.environ.get("LEM_DATA", "data")) / "ucr_uea" / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not in {folder}")
    parts = (str(folder / f"{name}_{part}.ts") for part in ("TRAIN", "TEST"))
    assert example("classify.py", monkeypatch)(*parts) >= least
