#!/bin/bash
# One machine with eight GPUs, four workers on each: 32 clients train at a time.
#
#     examples/cluster/eight-gpus.sh OUT [OPTION…]
#
# The command starts a local Ray cluster and ends it. Small models leave most of a GPU idle, so several workers share
# one; with a model that fills it, SHARE=1. `fedwcm doctor` compares such a run with one on the CPU first.
set -euo pipefail

out=${1:?usage: eight-gpus.sh OUT [OPTION…]}
shift
: "${SHARE:=0.25}"

export RAY_ADDRESS=local RAY_USAGE_STATS_ENABLED=0
fedwcm doctor
fedwcm run --backend ray --set run.worker_gpus="$SHARE" --set run.precision=bf16 \
    --dataset cifar10 --model resnet18 --method fedwcm --participation 0.32 --rounds 500 --out "$out" "$@"
