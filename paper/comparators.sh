#!/usr/bin/env bash
# Train the comparators of the MNIST tables on one GPU, in three commands:
#     bash paper/comparators.sh first 590; bash paper/comparators.sh second 590; bash paper/comparators.sh third 420
# The number is the time in seconds that the command may take. The folder .carry holds binarized_mnist.npz,
# `code` (the version of the code), and for `second` the folder `draw` that `first` left in $OUT.
# DRAW with attention has the GPU for itself in the first two, while small nets are tried on the CPU (never
# tested, only validated). The others share the GPU in the third; the best of each by validation is tested.
set -u
step=$1 limit=$2 began=$SECONDS
carry=${CARRY:-.carry} out=${OUT:-out} work=$(mktemp -d)
export PYTHONPATH=src:paper PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
read -r code < "$carry/code"
mkdir -p "$out"

left() { echo $((limit - (SECONDS - began) - $1)); } # seconds, less those that are kept back

job() { # name, seconds after which it is stopped, arguments of train
    local name=$1 most=$2 rc
    shift 2
    timeout "$most" nice -n "${NICE:-0}" "${PYTHON:-python3}" -m pynade_paper.comparators.train "$@" \
        --out "$work/$name" --data "$carry/binarized_mnist.npz" --code "$code" ${EXTRA:-} > "$work/$name.log" 2>&1
    rc=$?
    [ $rc = 0 ] || echo "$name ended with $rc: $(tail -n 3 "$work/$name.log")"
    return $rc
}

on_cpu() { CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=6 NICE=19 job "$@"; }

chosen() { # model and the names of its runs: the best of them by validation is tested
    local model=$1 runs=() run
    shift
    for run in "$@"; do grep -q '"valid": {' "$work/$run/result.json" 2> /dev/null && runs+=("$work/$run"); done
    if [ ${#runs[@]} = 0 ]; then echo "no run of $model came through"; return; fi
    job "$model" "$(left 8)" "$model" --among "${runs[@]}" --test
}

table() {
    "${PYTHON:-python3}" - "$work" << 'EOF'
import json, pathlib, sys

for file in sorted(pathlib.Path(sys.argv[1]).glob("*/result.json")):
    r, name = json.loads(file.read_text()), file.parent.name
    for stage in r["stages"]:
        n, s, train, valid = stage["curve"][-1]
        print(f"{name}: {n} updates, {s:.0f} s, {1e3 * s / n:.2f} ms each, share {stage['share']:.2f},",
              f"training {train}, validation {valid}, best {stage['best']:.3f} at {stage['best_at']}")
    found = {p: {n: round(v["mean"], 2) for n, v in r[p].items()} for p in ("valid", "test") if p in r}
    print(f"{name}: {found} {r.get('log_z', '')}")
EOF
}

share_gpu() { # let kernels of several processes run at once, where the driver's server for it works
    command -v nvidia-cuda-mps-control > /dev/null || { echo "no MPS: processes take turns"; return; }
    nvidia-cuda-mps-control -d
    timeout 40 "${PYTHON:-python3}" -c "import torch; torch.ones(2, device='cuda').sum().item()" && echo "MPS" && return
    echo quit | timeout 10 nvidia-cuda-mps-control
    echo "MPS does not work: processes take turns"
}

case $step in
first | second)
    mkdir -p "$out/draw" && ln -s "$(realpath "$out")/draw" "$work/draw" # kept even if the command is stopped
    if [ "$step" = first ]; then
        how=(--until "${UNTIL:-0.5}") keep=35 decay=0.1 price=0.1
    else
        how=(--resume "$carry/draw" --test) keep=80 decay=0.3 price=0.02
    fi
    on_cpu "darn-$decay" "$(left 10)" darn --decay $decay --seconds "$(left 70)" --samples 20 &
    on_cpu "noise-$price" "$(left 10)" darn-noise --set price=$price --rate 2e-3 --seconds "$(left 70)" --samples 20 &
    job draw "$(left 6)" draw-attention "${how[@]}" --seconds "$(left $keep)" || kill $(jobs -p)
    wait
    ;;
third)
    share_gpu
    train=$(left 150)
    darn=() noise=() dbn=()
    for decay in ${DECAYS:-0.05 0.2}; do
        darn+=("darn-$decay")
        job "darn-$decay" "$train" darn --decay "$decay" --seconds $((train / 2)) --samples 1000 &
    done
    for price in ${PRICES:-0.05 0.2}; do
        noise+=("noise-$price")
        job "noise-$price" "$train" darn-noise --set "price=$price" --seconds $((train - 30)) --samples 1000 &
    done
    for decay in ${DBN_DECAYS:-2e-4 1e-3}; do
        dbn+=("dbn-$decay")
        job "dbn-$decay" $((train + 60)) dbn --decay "$decay" --seconds $((train - 30)) --samples 200 &
    done
    wait
    chosen darn "${darn[@]}" &
    chosen darn-noise "${noise[@]}" &
    chosen dbn "${dbn[@]}" &
    wait
    for name in darn darn-noise dbn; do # weights and record, in pieces that may travel
        [ -d "$work/$name" ] && tar -C "$work" -cf - "$name" | split -b 15000000 - "$out/$name.tar."
    done
    ;;
esac
out=$(realpath "$out")
(cd "$work" && tar -czf "$out/logs.tgz" ./*.log ./*/result.json)
grep -h -i -E "error|won't convert" "$work"/*.log | head -5
table
echo "took $((SECONDS - began)) s"
