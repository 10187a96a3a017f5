#!/usr/bin/env bash
# Everything about GPUs that can be shown on ONE of them, in under eight minutes. Nothing is installed or fetched.
#
#   scripts/gpu_check.sh                    results into results/gpu-check-<utc>/ (or $OUT)
#
# Needs: an NVIDIA GPU with its driver; a Python ($PYTHON, python3) with torch for CUDA, cupy-cuda12x or -cuda13x,
# numba and NCCL. Where typer and rich are missing: `make gpu-deps` on a machine with a package index puts them, pure
# Python, into .gpu-deps, which travels with this folder.
#
# Two ranks on one GPU test answers. Their times are of time slices: the results are labelled same-gpu.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-results/gpu-check-$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$OUT"
export PYTHONPATH="$PWD:$PWD/.gpu-deps${PYTHONPATH:+:$PYTHONPATH}" COLUMNS=100 NO_COLOR=1
BEGIN=$(date +%s)
commbench() { "$PYTHON" -m commbench "$@"; }

# step NAME SECONDS COMMAND...: what it says goes to NAME.txt; none may take the others' time.
step() {
    local name=$1 limit=$2 start code
    shift 2
    start=$(date +%s)
    if [ $((start - BEGIN)) -gt 450 ]; then
        echo "$name: left out, eight minutes are over" | tee -a "$OUT/steps.txt"
        return
    fi
    timeout --kill-after=5 "$limit" "$@" >"$OUT/$name.txt" 2>&1
    code=$?
    printf '%-28s exit %3d  %3d s\n' "$name" "$code" $(($(date +%s) - start)) | tee -a "$OUT/steps.txt"
}

# two_ranks NAME SECONDS VARIABLES -- COMMAND...: two processes as a launcher would start them.
two_ranks() {
    local name=$1 limit=$2 port
    shift 2
    port=$((20000 + RANDOM % 20000))
    step "$name" "$limit" bash -c '
        for rank in 0 1; do
            env RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT='"$port"' \
                GLOO_SOCKET_IFNAME=lo NCCL_HOSTID=host$rank NCCL_MULTI_RANK_GPU_ENABLE=0 NCCL_SOCKET_IFNAME=lo "$@" &
        done
        code=0
        for job in $(jobs -p); do wait "$job" || code=$?; done
        exit $code' two_ranks "$@"
}

step driver 20 nvidia-smi
step packages 30 "$PYTHON" -m pip list
step doctor 60 "$PYTHON" -m commbench doctor
step clock-and-launch-cost 90 "$PYTHON" scripts/gpu_check.py "$OUT/clock-and-launch-cost.json"

FEW=(--runs 1 --no-plot --force --timeout 30s --init-timeout 60s)
step nccl-1-rank-every-operation 60 "$PYTHON" -m commbench sweep --backend nccl --ranks 1 \
    --op allreduce,allgather,reduce_scatter,alltoall,alltoallv,broadcast,reduce,gather,scatter \
    --mode pipe,sync,graph --in-place both -e 64M -f 64 --total-budget 15s --output "$OUT/nccl-1-rank.jsonl" "${FEW[@]}"
step nccl-1-rank-curve 40 "$PYTHON" -m commbench sweep --backend nccl --ranks 1 --op allreduce \
    --mode pipe,graph -e 1G --total-budget 12s --output "$OUT/nccl-1-rank-curve.jsonl" "${FEW[@]}"
step nccl-1-rank-contract 60 env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT=29411 COMMBENCH_PARENT=1 "$PYTHON" -m tests.backends.every_operation nccl compiled

# Two ranks, one GPU. NCCL believes in two hosts: they talk over NET/Socket.
two_ranks nccl-2-ranks-hostid 70 "$PYTHON" -m commbench sweep --backend nccl --allow-shared-gpu --op all -e 1M -f 64 \
    --total-budget 10s --output "$OUT/nccl-2-ranks-hostid.jsonl" --no-plot --force --timeout 30s --init-timeout 60s
# NCCL >= 2.30.3 knows of ranks that share a GPU.
step nccl-2-ranks-shared 70 "$PYTHON" -m commbench sweep --backend nccl --ranks 2 --allow-shared-gpu --op all -e 1M -f 64 \
    --total-budget 10s --output "$OUT/nccl-2-ranks-shared.jsonl" "${FEW[@]}"
two_ranks torch-nccl-2-ranks-hostid 80 "$PYTHON" -m commbench sweep --backend torch-nccl --allow-shared-gpu --op all \
    -e 1M -f 64 --total-budget 10s --output "$OUT/torch-nccl-2-ranks.jsonl" --no-plot --force --timeout 30s --init-timeout 60s
step torch-nccl-1-rank 60 "$PYTHON" -m commbench sweep --backend torch-nccl --ranks 1 --op allreduce \
    --mode pipe,graph -e 64M -f 16 --total-budget 8s --output "$OUT/torch-nccl-1-rank.jsonl" "${FEW[@]}"

step copies 80 "$PYTHON" -m commbench sweep --backend copies --op p2p -e 256M -f 8 --total-budget 15s \
    --output "$OUT/copies.jsonl" "${FEW[@]}"

for file in "$OUT"/*.jsonl; do
    commbench show "$file" >"${file%.jsonl}.show.txt" 2>&1
done
cat "$OUT/steps.txt"
! grep -qv 'exit   0' "$OUT/steps.txt"
