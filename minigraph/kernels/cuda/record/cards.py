"""GPUs by name, to plan for one that is not there: NVIDIA's data sheets and the CUDA C++ programming guide."""

from __future__ import annotations

from .binder import Device

CARDS = {
    "h200": Device(),
    "h100": Device(),  # SXM: as many multiprocessors as an H200
    "h100-pcie": Device(multiprocessors=114),
    "a100": Device("sm_80", 108, shared=163 * 1024),
    "l40s": Device("sm_89", 142, shared=99 * 1024),
    "rtx4090": Device("sm_89", 128, shared=99 * 1024),
}
