"""Damaged files of every format: a reader gives data or a DataError, never another exception."""

import contextlib
import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lem.tasks.google12 import read_wave
from lem.tasks.heart_rate import cut_windows, read_columns
from lem.tasks.mnist import read_idx
from lem.tasks.ncifar10 import read_images
from lem.tasks.ptb import read_symbols
from lem.training.data import DataError


def _wave() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(bytes(64))
    return out.getvalue()


READERS = {
    "idx": (read_idx, b"\0\0\x08\x02" + struct.pack(">II", 2, 3) + bytes(6)),
    "cifar": (lambda path: read_images([path]), bytes(3073)),
    "wave": (read_wave, _wave()),
    "table": (lambda path: read_columns(path, "HR", "II"), b"Time [s], HR, II\n0,1,2\n1,nan,4\n"),
    "text": (read_symbols, " a b \n c ü \n".encode()),
}


@pytest.mark.parametrize("name", READERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120, deadline=None)
@given(data=st.data())
def test_damage_gives_a_data_error_or_data(tmp_path, name, data):
    read, content = READERS[name]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        piece = data.draw(st.binary(max_size=6) | st.sampled_from([b",", b"\n", b"\xff\xff\xff\xff", b"nan", b"1"]))
        content = content[:at] + piece + content[at + data.draw(st.integers(0, 8)) :]
    path = tmp_path / "file"
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        read(path)


def test_recordings_that_are_too_short_are_data_errors():
    with pytest.raises(DataError, match="at least 32 s"):
        cut_windows(np.zeros((31 * 125, 2)), np.ones(40))
    with pytest.raises(DataError, match="a heart rate for every second"):
        cut_windows(np.zeros((40 * 125, 2)), np.ones(20))
