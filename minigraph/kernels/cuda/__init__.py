"""CUDA kernels: how operators become launches on a GPU.

    buffer.py    Buffer: an array on the device, known by shape and type before it has an address
    compile.py   CUDA C++ text -> cubin by NVRTC, kept on disk; needs no GPU
    binder.py    Binder: what an operator's bind function records: launches, products, copies
    <family>.py  bind functions of a family of operators, beside its <family>.cu

A bind function sees Buffers only, so everything up to the launch itself runs, and is tested,
without a GPU.
"""
