#!/usr/bin/env bash
# A training run on several hosts by plain ssh, one process a host with all its GPUs.
#
#   launch/hosts.sh first-host,second-host -- --config paper --workdir runs/paper
#
# Keys must let ssh in without a password; all hosts must see this folder and the work directory under the same path, and must reach the
# first host at port $PORT (29400). $PYTHON: the interpreter, by default that of `make`. $SSH: the command, by default ssh.
# Ctrl-C or SIGTERM here ends the run with a checkpoint; so does SIGTERM to any of its processes.
set -u
if [ $# -lt 2 ] || [ "$2" != -- ]; then
    echo "error: HOST,HOST,... -- and the options of train.py must be given; got: $*" >&2
    exit 2
fi
IFS=, read -ra hosts <<<"$1"
shift 2
coordinator="${hosts[0]}:${PORT:-29400}"
pids=()

remotely() { # host, command ...: quoted once more for the remote shell
    local host=$1
    shift
    ${SSH:-ssh} -o BatchMode=yes "$host" "cd $(printf %q "$PWD") && $*" </dev/null
}

end() { # one process is enough: all end after the same epoch
    remotely "${hosts[0]}" "pkill -TERM -f -- '^[^ ]+ train[.]py --distributed[.]coordinator $coordinator '"
}

for i in "${!hosts[@]}"; do
    words=("${PYTHON:-.venv/bin/python}" train.py --distributed.coordinator "$coordinator"
        --distributed.num-processes "${#hosts[@]}" --distributed.process-id "$i" "$@")
    remotely "${hosts[$i]}" "exec $(printf '%q ' "${words[@]}")" &
    pids+=($!)
done
trap end TERM INT

codes=()
for pid in "${pids[@]}"; do
    wait "$pid"
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done # a trapped signal ends `wait` too
    wait "$pid"
    codes+=($?)
done
"${PYTHON:-.venv/bin/python}" -m gmmae.system.exit_codes run "${#hosts[@]}" "${codes[@]}"
