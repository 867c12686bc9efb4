"""CUDA kernels: how operators become launches on a GPU.

    record/       what a bind function writes into: buffers, calls, views, source and its compiler; needs no GPU
    device/       runtime, streams, captured graphs, cuBLASLt, autotune; needs a GPU
    elsewhere     bind functions of one family of operators, each beside its .cu

A bind function sees Buffers only, so everything up to the launch itself runs, and is tested, without a GPU.
An operator names its family by `gpu="rows.softmax"`.
"""
