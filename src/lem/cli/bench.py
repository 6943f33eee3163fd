"""`lem bench`."""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from lem.diagnostics import bench, gpu
from lem.training.loop import check_device

ALSO = ["memory", "modes", "lengths", "odd", "growth", "small", "streaming"]


def add(commands: Any) -> None:
    """Add this topic's commands."""
    parser = commands.add_parser("bench")
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
    parser.add_argument(
        "--publish", type=Path, metavar="FILE", help="as --json, but fail if other programs used the processors"
    )
    parser.add_argument("--device", default="cpu", help='"cuda" measures the GPU kernels instead (default "cpu")')
    parser.set_defaults(command=_bench)


def _bench_gpu(options: argparse.Namespace) -> int:
    check_device(options.device, "lem bench")
    count = len(gpu.SHAPES)
    rows = range(1, count + 1) if options.only is None else options.only
    if not all(1 <= row <= count for row in rows) or options.rounds < 1:
        raise ValueError(f"`--only` of lem bench must name rows 1 to {count}, and `--rounds` be at least 1.")
    found: dict[str, Any] = {"machine": gpu.machine(options.device), "gpu": []}
    print(", ".join(f"{key} {value}" for key, value in found["machine"].items()))
    print(f"{'(T, B, m, d)':24} path         ms forward + backward  x nn.LSTM  x loop")
    for row in gpu.speed(options.device, options.rounds, [gpu.SHAPES[row - 1] for row in rows]):
        found["gpu"].append(row)
        _write(options.json, found)  # after every row: a run that is interrupted leaves what it has
        start = f"{tuple(row['shape'])!s:24} "
        if "error" in row:
            print(start + row["error"])
            continue
        ours = row["seconds"]["triton"]["both"]
        times = f"{1e3 * ours['median']:.2f} [{1e3 * ours['low']:.2f}, {1e3 * ours['high']:.2f}]"
        print(f"{start}{row['path']:12} {times:22} {row['x_lstm_both']:9.2f} {row['x_loop_both']:7.1f}", flush=True)
    return 0


def _write(file: Path | None, found: dict[str, Any]) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")


def _bench(options: argparse.Namespace) -> int:
    if options.device != "cpu":
        return _bench_gpu(options)
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
    print(f"{'':34}float32{'':36}bfloat16")
    print(f"{'(T, B, m, d)':24} threads  ms [quartiles]          x LSTM forward  x loop  peak    ms  x LSTM  x float32")
    for threads in [] if options.skip_speed else options.threads:
        mine = []
        for row in bench.speed(
            shapes, threads, options.rounds, options.last_step, options.flush_denormals, options.clock
        ):
            mine.append(row)
            print(_line(row))
        found["speed"] += mine
        means = (
            statistics.geometric_mean(ratios)
            for ratios in (
                [row["x_both"]["lstm"] for row in mine],
                [row["x_bfloat16_both"]["lstm bfloat16"] for row in mine],
                [row["x_bfloat16_both"]["lem"] for row in mine],
            )
        )
        print("geometric mean: {:.2f} x LSTM in float32, {:.2f} in bfloat16; bfloat16 {:.2f} x float32".format(*means))
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
    loaded = [row for row in found["speed"] if row["loaded"]]
    if loaded:
        print(
            f"* other programs used the processors during {len(loaded)} of {len(found['speed'])} rows: "
            "do not quote them."
        )
    for file in (options.json, options.publish):
        _write(file, found)
    return 1 if loaded and options.publish is not None else 0


def _line(row: dict[str, Any]) -> str:
    ours, x, bfloat16 = row["seconds"]["lem"]["both"], row["x_both"], row["x_bfloat16_both"]
    quartiles = f"[{1e3 * ours['low']:.1f}, {1e3 * ours['high']:.1f}]"
    return (
        f"{tuple(row['shape'])!s:24} {row['threads']:7}  {1e3 * ours['median']:7.1f} {quartiles:16} {x['lstm']:6.2f} "
        f"{row['x_forward']['lstm']:7.2f} {x['loop']:7.1f}  {100 * row['gflops_both'] / row['peak_gflops']:3.0f}% "
        f"{1e3 * row['seconds']['lem bfloat16']['both']['median']:7.1f} {bfloat16['lstm bfloat16']:6.2f} "
        f"{bfloat16['lem']:9.2f}{' *' if row['loaded'] else ''}"
    )


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
