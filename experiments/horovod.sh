#!/usr/bin/env bash
# Builds Horovod, in the version of constraints.txt, for PyTorch and Gloo into an environment that has torch: some five minutes.
#
#     experiments/horovod.sh PYTHON
#
# Its CMake files ask for C++14; the headers of today's PyTorch need C++17.
set -euo pipefail

if [ $# -ne 1 ] || ! "$1" -c 'import torch' 2>/dev/null; then
    echo "horovod.sh: takes the Python of an environment that has torch; got '${1:-nothing}': install torch there first" >&2
    exit 2
fi
for tool in cmake g++; do
    if ! command -v "$tool" >/dev/null; then
        echo "horovod.sh: $tool must be installed to compile Horovod; there is none: install cmake and g++" >&2
        exit 2
    fi
done
python=$1
version=$(sed -n 's/^horovod==//p' "$(dirname "$0")/../constraints.txt")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" -m pip download --quiet --disable-pip-version-check --no-binary horovod --no-deps --no-build-isolation \
    --dest "$folder" "horovod==$version"
tar -xzf "$folder/horovod-$version.tar.gz" -C "$folder"
source=$folder/horovod-$version
sed -i 's/set(CMAKE_CXX_STANDARD 1[14])/set(CMAKE_CXX_STANDARD 17)/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
grep -q 'CMAKE_CXX_STANDARD 17' "$source/CMakeLists.txt"
HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO \
    "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation "$source"
