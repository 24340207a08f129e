#!/bin/bash
# A fit on 4 nodes with 8 GPUs each: sbatch slurm.sh fit.py
# The script is an ordinary one, which passes mesh= to jalax.fit and keeps a jalax.checkpoint on a
# disk that all nodes see. If a node is lost, the job is queued again and goes on from there, also
# on fewer nodes.
#SBATCH --job-name=jalax
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

# One process a GPU. JAX reads from SLURM's environment who they are and where the first one is.
# On nodes without GPUs: leave out --gpus-per-task, and set NPROC to the threads of a process.
srun --kill-on-bad-exit=1 python -u -m jalax.launch "$@"
status=$?

# 75: a process was lost, and the checkpoint is whole.
if [ "$status" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
