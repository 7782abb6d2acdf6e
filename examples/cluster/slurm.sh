#!/bin/bash
# A comparison on a Slurm cluster: one Ray node per machine, and the command on the first of them.
#
#     sbatch examples/cluster/slurm.sh
#
# Needs an environment with fedwcm[ray] and the data on a file system that all machines share. For GPUs, ask for them
# below (--gpus-per-node) and add `--set run.worker_gpus=0.5` to the command: two workers then share a GPU.
#SBATCH --job-name=fedwcm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
#SBATCH --output=fedwcm-%j.log
#SBATCH --signal=B:TERM@300
# The last line: five minutes before the end the command is asked to save its progress, and the job ends. Submitted
# again, it goes on.

set -euo pipefail

: "${VENV:=$HOME/fedwcm}"   # an environment with fedwcm[ray]
: "${OUT:=$HOME/runs/slurm}" # on the file system that all machines share
port=6379

# shellcheck source=/dev/null
source "$VENV/bin/activate"
export RAY_USAGE_STATS_ENABLED=0 OMP_NUM_THREADS=1

mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

start() { # MACHINE OPTION…: a Ray node that lives as long as the job
    local machine=$1
    shift
    srun --nodes=1 --ntasks=1 --nodelist="$machine" --overlap \
        ray start --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats --block "$@" &
}

start "$head" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
export RAY_ADDRESS=$address:$port
until ray status > /dev/null 2>&1; do sleep 1; done
for machine in "${machines[@]:1}"; do
    start "$machine" --address="$RAY_ADDRESS"
done

# Runs are spread over the cluster if there are at least as many as workers, else the clients of each:
# --set run.spread=runs or clients decides. Nodes that join late are used as soon as they are there.
fedwcm compare --backend ray --set data.shared=true \
    --dataset fashion-mnist --methods fedavg,fedcm,fedwcm --seeds 0,1,2 --rounds 200 --out "$OUT" &
command=$!
trap 'kill -TERM "$command"' TERM
status=0
wait "$command" || status=$?
wait "$command" || status=$? # after the signal, until the progress is saved
exit "$status"
