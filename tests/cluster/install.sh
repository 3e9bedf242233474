#!/usr/bin/env bash
# Slurm, Open MPI and ssh from Debian or Ubuntu, as far as they are missing; tests/cluster starts and ends them itself.
set -euo pipefail
packages=()
PATH=$PATH:/usr/sbin
command -v slurmctld >/dev/null && command -v slurmd >/dev/null || packages+=(slurm-wlm)
command -v munged >/dev/null || packages+=(munge)
command -v mpirun >/dev/null || packages+=(openmpi-bin)
command -v sshd >/dev/null || packages+=(openssh-server openssh-client)
if [ ${#packages[@]} -gt 0 ]; then
    become=$([ "$(id -u)" -eq 0 ] || echo sudo)
    $become apt-get update -q
    $become env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
fi
