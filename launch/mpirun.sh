#!/usr/bin/env bash
# A training run under Open MPI, which only starts the processes: they speak over TCP, and by NCCL or Gloo.
#
#   launch/mpirun.sh -np 4 -- --config paper --workdir runs/paper
#   launch/mpirun.sh -np 8 --hostfile hosts -- --config paper --workdir runs/paper --distributed.coordinator first-host:20000
#
# Options of mpirun come before --, those of train.py after it. Several processes of a host have one GPU each; all hosts must see the
# project's folder, in which this is started, and the work directory. $PYTHON: the interpreter, by default that of `make`.
# With several hosts Open MPI 5 does not say where process 0 is, so give the coordinator; 4 does.
# Ctrl-C or SIGTERM here ends the run with a checkpoint.
set -u
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
done
if [ $# -eq 0 ]; then
    echo "error: options of mpirun, --, options of train.py must be given; got no --: see the head of $0" >&2
    exit 2
fi
shift
# Each process gets a pseudo-terminal; where there is no terminal behind it, lines are wanted.
[ -t 1 ] || export TTY_COMPATIBLE=0
# Not bound to cores: a process has threads. When the first process ends, mpirun waits so many seconds before SIGTERM to the others.
options=(--bind-to none --mca odls_base_sigkill_timeout 10 ${options[@]+"${options[@]}"})
setsid mpirun "${options[@]}" "${PYTHON:-.venv/bin/python}" train.py "$@" &
pid=$!
# SIGTERM would make mpirun kill; SIGUSR1 it passes on to all, on all hosts.
trap 'kill -USR1 $pid' TERM INT
wait $pid
while kill -0 $pid 2>/dev/null; do wait $pid; done # a trapped signal ends `wait` too
wait $pid
# mpirun has the code of whichever process failed first, a killed one too; several are taken for granted.
"${PYTHON:-.venv/bin/python}" -m gmmae.system.exit_codes run 2 $?
