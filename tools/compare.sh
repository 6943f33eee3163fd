#!/bin/sh
# Train all models of a comparison, JOBS at a time, and take the runs into the reproduction; finished runs are kept.
#   tools/compare.sh fitzhugh_nagumo [JOBS]   seven models, three seeds each
#   tools/compare.sh adding [JOBS]            every model on 200 steps, 1,500 updates, one figure
set -e
cd "$(dirname "$0")/.."
lem=.venv/bin/lem
jobs=${2:-1}
export OMP_NUM_THREADS=1
case "$1" in
fitzhugh_nagumo)
    for seed in 0 1 2; do
        for model in lem lstm exprnn lipschitz fastgrnn cornn lem-single-scale; do
            echo "fitzhugh_nagumo/$model --seed $seed"
        done
    done | xargs -P "$jobs" -L 1 "$lem" train
    make reproduction ADD="$(echo runs/fitzhugh_nagumo/*/*)"
    ;;
adding)
    "$lem" sweep adding/short --jobs "$jobs"
    make reproduction ADD="$(echo runs/adding/short/*)"
    ;;
*)
    echo "usage: tools/compare.sh fitzhugh_nagumo|adding [JOBS]" >&2
    exit 2
    ;;
esac
