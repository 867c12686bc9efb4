"""Checkpoints: the state of a training on disk, old or new at every instant, never half.

    paths      what the files are called
    storage    bytes to files and back: whole, synced, regular files only
    header     of a safetensors file: which tensors lie where in it
    tensors    arrays as safetensors and back, with a hash of each
    manifest   what belongs to one state: its files, sizes, hashes, and the state of the training
    training   run counters, seeds and learning-rate schedulers, out of a program and into it
    commit     all files of a state under new names, then one rename
    reader     the one way in which files become arrays again
"""
