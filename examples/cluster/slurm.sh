#!/bin/bash
# Two machines, one process on each, all of a machine's GPUs for its process.
# JAX finds the coordinator, the number of processes and its own number in Slurm's variables.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00

# When one process fails, the others are ended too.
srun --kill-on-bad-exit=1 python train.py --steps 1000
