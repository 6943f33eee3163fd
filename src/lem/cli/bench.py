"""`lem bench`."""

import argparse
import json
from pathlib import Path
from typing import Any

from lem import bench

ALSO = ["memory", "modes", "lengths", "odd", "growth", "small", "streaming"]


def add(commands: Any) -> None:
    """Add this topic's commands."""
    parser = commands.add_parser("bench", help="time the kernel beside nn.LSTM, nn.GRU and the loop")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="rows of the table of shapes, from 1")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repeats (default 5)")
    parser.add_argument(
        "--clock", choices=list(bench.CLOCKS), default="wall", help="processor: on a busy machine, one thread"
    )
    parser.add_argument("--last-step", action="store_true", help="a gradient at the last step only: a classifier")
    parser.add_argument("--flush-denormals", action="store_true", help="let torch flush denormals, for all")
    parser.add_argument("--also", nargs="+", default=[], choices=ALSO, metavar="WHAT", help=", ".join(ALSO))
    parser.add_argument("--skip-speed", action="store_true", help="measure only what --also names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE as well")
    parser.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    rows = range(1, len(bench.SHAPES) + 1) if options.only is None else options.only
    if not all(1 <= row <= len(bench.SHAPES) for row in rows):
        raise ValueError(f"`--only` of lem bench must name rows 1 to {len(bench.SHAPES)}; got {options.only}.")
    if options.rounds < 1 or min(options.threads) < 1:
        raise ValueError(
            "`--rounds` and `--threads` of lem bench must be at least 1; "
            f"got {options.rounds} and {', '.join(map(str, options.threads))}."
        )
    if options.clock == "processor" and options.threads != [1]:
        raise ValueError("`--threads` of lem bench must be 1 with --clock processor: it adds up over threads.")
    shapes = [bench.SHAPES[row - 1] for row in rows]
    found: dict[str, Any] = {"machine": bench.machine(), "speed": []}
    print(", ".join(f"{key} {value}" for key, value in found["machine"].items()))
    print(f"{'(T, B, m, d)':24} threads  ms [quartiles]          x LSTM  x GRU  x loop  forward x LSTM  GFLOP/s  peak")
    for threads in [] if options.skip_speed else options.threads:
        for row in bench.speed(
            shapes, threads, options.rounds, options.last_step, options.flush_denormals, options.clock
        ):
            found["speed"].append(row)
            ours, x = row["seconds"]["lem"]["both"], row["x_both"]
            quartiles = f"[{1e3 * ours['low']:.1f}, {1e3 * ours['high']:.1f}]"
            print(
                f"{tuple(row['shape'])!s:24} {threads:7}  {1e3 * ours['median']:7.1f} {quartiles:16} {x['lstm']:6.2f} "
                f"{x['gru']:6.2f} {x['loop']:7.1f} {row['x_forward']['lstm']:15.2f} {row['gflops_both']:8.0f} "
                f"{100 * row['gflops_both'] / row['peak_gflops']:4.0f}%"
            )
    threads = options.threads[0]
    if "lengths" in options.also:
        found["lengths"] = _show(
            bench.unequal([s for s in shapes if s in bench.SHAPES[1:6]], threads, options.rounds, options.clock)
        )
    if "odd" in options.also:
        found["odd"] = _show(bench.odd_sizes(threads, options.rounds, options.clock))
    large = [s for s in shapes if s in bench.SHAPES[4:6]]
    if "modes" in options.also:
        found["modes"] = _show(bench.modes(large, threads, options.rounds, options.clock))
    if "small" in options.also:
        found["small"] = _show(bench.small_batches(threads, options.rounds))
    if "growth" in options.also:
        found["growth"] = _show(bench.growth(threads, options.rounds, options.clock))
    if "streaming" in options.also:
        found["streaming"] = _show(bench.streaming())
    if "memory" in options.also:
        found["memory"] = _show(bench.memory(large, ("store", "recompute", "bounded", "lstm", "loop")))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _show(rows: Any) -> list[dict[str, Any]]:
    kept = []
    for row in rows:
        kept.append(row)
        print("  ".join(f"{key} {_short(value)}" for key, value in row.items()))
    return kept


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(inner)}" for key, inner in value.items()) + "}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
