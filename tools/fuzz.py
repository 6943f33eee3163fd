"""Fuzz every reader with RUNS inputs, guided by coverage: `python tools/fuzz.py [--runs 4000] [reader ...]`.

Each reader of tests/readers.py runs in a separate process under atheris, from its seed and from what is kept in
tests/fixtures/fuzz/<reader>/. An input that raises anything but a refusal, or takes more than 2 GB or 20 seconds, is
written to crashes/ and ends the run with status 1: mend the reader, and keep the input in tests/fixtures/fuzz/.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def one(name: str, runs: int) -> None:
    """Fuzz one reader in this process, which libFuzzer ends."""
    import atheris

    # From src/, not through the finder of the editable install, whose modules atheris cannot instrument.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
    sys.path.insert(0, str(ROOT / "src"))
    with atheris.instrument_imports(include=["lem"]):  # the first import of lem in this process
        from tests.readers import READERS, read

    folder = Path(tempfile.mkdtemp())
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes(READERS[name][2]())
    kept = ROOT / "tests" / "fixtures" / "fuzz" / name
    crashes = ROOT / "crashes"
    crashes.mkdir(exist_ok=True)
    limits = [
        f"-runs={runs}",
        "-max_total_time=120",
        "-rss_limit_mb=2048",
        "-timeout=20",
        "-max_len=4096",
        "-verbosity=0",
    ]
    places = [str(corpus), *([str(kept)] if kept.is_dir() else [])]

    def test(data: bytes) -> None:
        read(name, data, folder)

    atheris.Setup(["fuzz", "-verbosity=0", *limits, f"-artifact_prefix={crashes}/{name}-", *places], test)
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], int(sys.argv[3]))
    from tests.readers import READERS

    parser = argparse.ArgumentParser(description="Fuzz every reader.")
    parser.add_argument("readers", nargs="*", metavar="reader", help=f"of {', '.join(READERS)}; all by default")
    parser.add_argument("--runs", type=int, default=4000, help="inputs for each reader, or two minutes (default 4000)")
    options = parser.parse_args()
    failed = []
    for name in options.readers or READERS:
        call = [sys.executable, __file__, "--one", name, str(options.runs)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        print(f"{name}: {'right' if done.returncode == 0 else 'FAILED'}", flush=True)
        if done.returncode != 0:
            print(done.stdout[-3000:] + done.stderr[-3000:])
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
