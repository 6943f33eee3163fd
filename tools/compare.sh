#!/bin/sh
# Train all models of a comparison, JOBS at a time, and draw or publish what came out; finished runs are kept.
#   tools/compare.sh fitzhugh_nagumo [JOBS]   seven models, three seeds each, published to results/
#   tools/compare.sh adding [JOBS]            every model on 200 steps, 1,500 updates, one figure
set -e
lem=$(dirname "$0")/../.venv/bin/lem
jobs=${2:-1}
export OMP_NUM_THREADS=1
case "$1" in
fitzhugh_nagumo)
    for seed in 0 1 2; do
        for model in lem lstm exprnn lipschitz fastgrnn cornn lem-single-scale; do
            echo "fitzhugh_nagumo/$model --seed $seed"
        done
    done | xargs -P "$jobs" -L 1 "$lem" train
    "$lem" publish runs/fitzhugh_nagumo/*/*
    ;;
adding)
    "$lem" recipes | awk '$1 ~ /^adding\/.*-short$/ { print $1 }' | xargs -P "$jobs" -L 1 "$lem" train
    "$lem" publish runs/adding/*-short/*
    "$lem" study results/adding/*-short --over model.cell --curves --figure docs/images/adding-200.png
    ;;
*)
    echo "usage: tools/compare.sh fitzhugh_nagumo|adding [JOBS]" >&2
    exit 2
    ;;
esac
