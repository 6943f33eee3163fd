"""Install what `make dist` built as a stranger would, and use it: `python tools/try_package.py dist`.

One new environment, in turn: the wheel without extras, the sdist (not with `--quick`: the wheel was built from it), the
sdist where no compiler works, and the wheel with the extras of the demo. Each is examined by `tools/smoke.py`, which
sees the installed package and nothing of the source tree. torch is installed once, at the version of constraints.txt.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


def main(folder: Path, quick: bool) -> int:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="try-package-") as temporary:
        place = Path(temporary)
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        binaries = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
        # Nothing of the caller's environment: no PYTHONPATH, no LEM_*, a separate data folder.
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "LEM_"))}
        clean |= {"LEM_DATA": str(place / "data"), "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}

        def install(what: str, *options: str, **environment: str) -> None:
            pip = [binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            call = [*pip, "-c", ROOT / "constraints.txt", *options, what]
            subprocess.run(call, cwd=place, env=clean | environment, check=True)

        def smoke(title: str, *words: str) -> None:
            empty = Path(tempfile.mkdtemp(dir=place))
            call = [binaries / "python", "-I", ROOT / "tools" / "smoke.py", *words]
            subprocess.run(call, cwd=empty, env=clean, check=True)
            print(f"{title}: right ({time.monotonic() - began:.0f} s)", flush=True)

        began = time.monotonic()
        install(str(wheel))
        smoke("wheel, no extras", "core", "extras", "kernel")
        # Without its cache: pip keeps what it built, and a kernel built before must not stand in for one built now.
        again = ("--force-reinstall", "--no-deps", "--no-cache-dir")
        if not quick:
            install(str(sdist), *again)
            smoke("sdist", "core", "kernel")
        install(str(sdist), *again, **NO_COMPILER)
        smoke("sdist, no compiler", "core", "loop")
        install(f"long-expressive-memory[data,plot] @ {wheel.as_uri()}", "--force-reinstall", "--no-deps")
        install(f"long-expressive-memory[data,plot] @ {wheel.as_uri()}")
        smoke("wheel with [data,plot]", "demo")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), quick="--quick" in sys.argv))
