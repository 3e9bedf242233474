"""Settings that change PyTorch's speed on a CPU."""

from typing import NamedTuple


class Setting(NamedTuple):
    """Change from PyTorch as installed.

    Attributes:
      meaning: what it does.
      environ: variables that a process starts with. `TorchPeer` makes the other changes.
    """

    meaning: str
    environ: dict[str, str] = {}  # noqa: RUF012


_NEVER = str(1 << 40)

SETTINGS = {
    "malloc": Setting(
        "freed memory stays in the process", {"MALLOC_TRIM_THRESHOLD_": _NEVER, "MALLOC_MMAP_THRESHOLD_": _NEVER}
    ),
    "hugepages": Setting("pages of 2 MiB", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}),
    "flush": Setting("denormal numbers count as zero, as in XLA"),
    "channels-last": Setting("channels are the last axis in memory"),
    "pinned": Setting("each thread stays on a core", {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}),
    "passive": Setting("threads sleep while they wait", {"OMP_WAIT_POLICY": "passive"}),
    "avx2": Setting("no AVX-512", {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}),
}
