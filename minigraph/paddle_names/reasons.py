"""Why a name of Paddle is not here: one reason for each family, one line for each name that has more to say.

A name that comes to exist drops out by itself: only missing ones are looked up.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Absence(NamedTuple):
    """Why the names of a family are not here, and what to use instead of them."""

    why: str
    instead: str | None


FETCH = "fetch the value: (value,) = exe.run(main, feed={...}, fetch_list=[variable])"
MINIMIZE = "static.append_backward(loss), or optimizer.minimize(loss), adds the gradients to the program"

LAYER_TYPE = "mg.set_default_dtype(...) before the layer is made; static.Executor(place) decides where it runs"
OPTIMIZER_STATE = "program.state_dict('opt') and program.set_state_dict(...) have the states; static.save keeps them"

FAMILIES = {
    "dynamic": Absence(
        "there is no dynamic mode, in which Paddle computes line by line",
        "build a program once and run it: exe = static.Executor(); exe.run(static.default_startup_program());"
        " exe.run(main, feed={...}, fetch_list=[...])",
    ),
    "value": Absence("there is no dynamic mode: a variable has no value while the program is built", FETCH),
    "gradient": Absence("there is no dynamic mode: gradients are part of the program", MINIMIZE),
    "convolution": Absence(
        "convolution and pooling are not part of minigraph",
        "a convolution whose patches do not overlap is a reshape and nn.Linear; pooling of such is mean or max",
    ),
    "image": Absence("functions of images are not part of minigraph", "prepare images before they are fed"),
    "list": Absence("it takes a list, so it is a function and no method", None),
    "recurrent": Absence(
        "recurrent layers are not part of minigraph", "nn.MultiHeadAttention, or a step written out for each time",
    ),
    "sequence": Absence(
        "sequences of several lengths in one tensor (LoD) are not part of minigraph",
        "pad them to one length, feed a mask beside them",
    ),
    "sparse": Absence("sparse tensors are not part of minigraph", "dense tensors; nn.Embedding's gradient is dense"),
    "quantisation": Absence("quantisation is not part of minigraph", "bfloat16 or float16"),
    "distributed": Absence(
        "of training on several devices only data parallel is here",
        "CompiledProgram.with_data_parallel, mg.distributed.init_parallel_env, fleet.distributed_optimizer",
    ),
    "complex": Absence("complex numbers are not part of minigraph", "real and imaginary parts as two float tensors"),
    "device": Absence("minigraph runs on CPUs and NVIDIA GPUs", "CPUPlace() or CUDAPlace(0)"),
    "control flow": Absence(
        "there are no arrays of tensors in a program", "a loop carries values: static.nn.while_loop with mg.concat",
    ),
    "fleet": Absence("Paddle's trainers that read files by themselves are not here", "io.DataLoader and exe.run"),
    "writes": Absence("it writes over its argument; values of a program are written once", "assign its result"),
    "inner": Absence("an inner part of Paddle", None),
    "precision": Absence("it casts values while they are computed", "static.amp.decorate(optimizer, level, dtype)"),
    "domain": Absence("a library of Paddle for one subject, not part of minigraph", "it runs before the feed"),
    "export": Absence("exchange with other formats is not here", "static.save_inference_model, or safetensors files"),
    "random state": Absence("random numbers are counted, not drawn from a state", "mg.seed(n), program.random_seed"),
    "later": Absence("not here yet", None),
}  # fmt: skip

DEFAULT = {"base": "inner", "base.framework": "inner", "framework": "inner", "utils": "inner"}  # else "later"

# (namespace, family, names): the first row that fits holds; * as in file names
ROWS = (
    ("*", "device", "*IPU* *Ipu* *ipu* *XPU* *xpu* *Custom* *custom_device* *rocm* *HeterXpu*"),
    ("", "dynamic", "DataParallel LazyGuard Model disable_static enable_grad set_grad_enabled is_grad_enabled summary"
        " flops callbacks hapi hub jit autograd"),
    ("", "gradient", "grad"),
    ("", "value", "tolist set_printoptions"),
    ("", "distributed", "distributed"),
    ("", "sparse", "sparse geometric"),
    ("", "quantisation", "quantization"),
    ("", "complex", "complex complex64 complex128 is_complex as_complex as_real polar angle conj real imag fft signal"),
    ("", "domain", "audio dataset text vision distribution"),
    ("", "export", "inference"),
    ("", "inner", "dtype check_shape disable_signal_handler sysconfig version get_cudnn_version hub"),
    ("", "random state", "get_cuda_rng_state get_rng_state set_cuda_rng_state set_rng_state"),
    ("", "writes", "*_"),
    ("", "precision", "amp"),
    ("", "inner", "view view_as"),
    ("", "device", "CUDAPinnedPlace"),
    ("amp", "precision", "*"),
    ("static.amp", "precision", "*"),
    ("base", "dynamic", "dygraph enable_dygraph disable_dygraph enable_imperative disable_imperative"),
    ("base", "sequence", "*LoD* *lod*"),
    ("base", "fleet", "*Trainer* *Dataset* DataFeedDesc TrainerDesc"),
    ("device", "device", "*"),
    ("framework", "dynamic", "disable_static to_variable grad"),
    ("reader", "inner", "multiprocess_reader"),
    ("utils", "domain", "cpp_extension download"),
    ("incubate", "sparse", "graph_*"),
    ("incubate", "later", "segment_*"),
    ("incubate", "inner", "*"),
    ("tensor", "writes", "create_tensor"),
    ("tensor", "control flow", "*"),
    ("io", "distributed", "DistributedBatchSampler"),
    ("linalg", "complex", "eig eigvals"),
    ("metric", "later", "*"),
    ("nn", "convolution", "*Pool* Conv* *MaxUnPool*"),
    ("nn", "image", "BatchNorm2D BatchNorm3D InstanceNorm2D InstanceNorm3D ChannelShuffle Dropout2D Dropout3D Fold"
        " LocalResponseNorm Pad2D Pad3D PixelShuffle PixelUnshuffle Softmax2D Unfold Upsamp* ZeroPad2D"),
    ("nn", "recurrent", "*RNN* *GRU* *LSTM* BeamSearchDecoder dynamic_decode CTCLoss"),
    ("nn", "distributed", "SyncBatchNorm"),
    ("nn", "quantisation", "quant"),
    ("nn", "gradient", "utils"),
    ("nn.functional", "convolution", "*pool* conv* *unpool*"),
    ("nn.functional", "image", "affine_grid channel_shuffle dropout2d dropout3d fold grid_sample interpolate"
        " local_response_norm pixel_* temporal_shift unfold upsample zeropad2d"),
    ("nn.functional", "recurrent", "ctc_loss rnnt_loss gather_tree"),
    ("nn.functional", "sparse", "sparse_attention"),
    ("nn.functional", "distributed", "class_center_sample margin_cross_entropy"),
    ("nn.functional", "writes", "*_"),
    ("static", "fleet", "ctr_metric_bundle"),
    ("static.nn", "convolution", "*conv*"),
    ("static.nn", "sequence", "sequence_*"),
    ("static.nn", "sparse", "sparse_embedding nce"),
    ("static.nn", "fleet", "data_norm"),
    ("Variable", "value", "numpy item tolist"),
    ("Variable", "gradient", "backward gradient clear_gradient register_hook grad"),
    ("Variable", "device", "cpu cuda place pin_memory"),
    ("Variable", "control flow", "append pop"),
    ("Variable", "complex", "eig eigvals as_complex as_real polar angle conj real imag is_complex istft stft"),
    ("Variable", "list", "broadcast_shape broadcast_tensors concat multi_dot multiplex stack"),
    ("Variable", "sparse", "indices values to_dense"),
    ("Variable", "distributed", "dist_attr"),
    ("Variable", "writes", "*_"),
    ("Variable", "inner", "attr attr_names create_parameter create_tensor view view_as var"),
    ("Program", "inner", "parse_from_string"),
    ("Executor", "fleet", "train_from_dataset infer_from_dataset start_heter_trainer split_program_by_device flush"),
    ("Operator", "inner", "*"),
    ("Block", "inner", "*"),
    ("BuildStrategy", "distributed", "*nccl* *bkcl* *trainer* *hierarchical* is_distribution async_mode *_allreduce*"),
    ("BuildStrategy", "inner", "*"),
    ("Layer", "gradient", "backward clear_gradients"),
    ("Layer", "dynamic", "create_tensor create_variable to_static_state_dict"),
    ("Layer", "value", "astype bfloat16 float float16 to"),
    ("Optimizer", "gradient", "step clear_grad backward"),
    ("Optimizer", "dynamic", "state_dict set_state_dict set_lr_scheduler get_opti_var_name_list"),
    ("Optimizer", "inner", "append_regularization_ops"),
)  # fmt: skip

# what to use instead of a name, where its family does not say it well
INSTEAD = {
    "disable_static": "static mode is the only one: build with static.data and nn, run with static.Executor",
    "jit": "a program is compiled by static.CompiledProgram(main, static.BuildStrategy.all())",
    "Model": "write the loop: for batch in loader: exe.run(main, feed=batch, fetch_list=[loss])",
    "grad": "static.gradients(targets, inputs)",
    "set_grad_enabled": "variable.stop_gradient = True, or no_grad_set= of minimize and append_backward",
    "is_grad_enabled": "ask variable.stop_gradient",
    "enable_grad": "variable.stop_gradient = False",
    "summary": "print(main) shows the program, compiled.memory_report() its memory",
    "tolist": "fetch the value and call its tolist()",
    "poisson": "mg.normal for large rates; or draw with NumPy and feed",
    "Variable.top_p_sampling": "mg.topk, mg.cumsum and mg.multinomial",
    "Variable.broadcast_shape": "mg.broadcast_shape(x.shape, y.shape)",
    "Variable.broadcast_tensors": "mg.broadcast_tensors([x, y])",
    "Variable.concat": "mg.concat([x, y], axis)",
    "Variable.multi_dot": "mg.linalg.multi_dot([x, y])",
    "Variable.multiplex": "mg.multiplex([x, y], index)",
    "Variable.stack": "mg.stack([x, y], axis)",
    "dtype": "names such as 'float32', or mg.float32; NumPy's dtypes",
    "view": "reshape",
    "view_as": "reshape",
    "autograd": "static.append_backward, static.gradients",
    "distribution": "mg.randn, mg.uniform and formulas of elementwise operators",
    "CUDAPinnedPlace": "feeds reach the GPU through pinned memory anyway",
    "vision": "prepare images with another library, feed arrays",
    "tensor.create_tensor": "the result of mg.assign, or static.create_global_var(shape, value, dtype)",
    "incubate.segment_sum": "mg.matmul(nn.functional.one_hot(segments, n), x, transpose_x=True)",
    "incubate.softmax_mask_fuse": "nn.functional.softmax(x + mask), which fuse_elementwise computes in one kernel",
    "base.dygraph": "static.data, nn and static.Executor",
    "base.layers": "the functions have been mg.*, nn.functional.* and static.nn.* since Paddle 2.0",
    "base.LoDTensor": "numpy.array",
    "static.auc": "metric.Auc, updated with fetched predictions",
    "static.nn.nce": "nn.functional.fused_linear_cross_entropy computes the whole softmax in little memory",
    "static.nn.sparse_embedding": "static.nn.embedding",
    "nn.SyncBatchNorm": "nn.BatchNorm1D: there is one device",
    "nn.Upsample": "mg.repeat_interleave along an axis",
    "nn.utils": "grad_clip= of the optimizer",
    "Variable.numpy": FETCH,
    "Variable.item": FETCH,
    "Variable.backward": MINIMIZE,
    "Variable.gradient": "fetch variable.name + '@GRAD' after static.append_backward(loss)",
    "Variable.grad": "fetch variable.name + '@GRAD' after static.append_backward(loss)",
    "Variable.clear_gradient": "nothing needs to be cleared: each run computes its gradients anew",
    "Variable.register_hook": "change the gradient with operators: params_grads = optimizer.backward(loss), then"
        " optimizer.apply_gradients(params_grads)",
    "Variable.append": "a Python list and mg.concat or mg.stack",
    "Variable.pop": "a Python list and mg.concat or mg.stack",
    "Variable.cpu": "static.Executor(place) decides where a program runs",
    "Variable.cuda": "static.Executor(place) decides where a program runs",
    "Variable.place": "static.Executor(place) decides where a program runs",
    "Program.parse_from_string": "minigraph.ir.text.parse(text) reads what print(program) writes",
    "Layer.backward": MINIMIZE,
    "Layer.clear_gradients": "nothing needs to be cleared: each run computes its gradients anew",
    "Layer.astype": LAYER_TYPE,
    "Layer.bfloat16": LAYER_TYPE,
    "Layer.float": LAYER_TYPE,
    "Layer.float16": LAYER_TYPE,
    "Layer.to": LAYER_TYPE,
    "Optimizer.state_dict": OPTIMIZER_STATE,
    "Optimizer.set_state_dict": OPTIMIZER_STATE,
    "Optimizer.get_opti_var_name_list": OPTIMIZER_STATE,
    "Optimizer.set_lr_scheduler": "give the schedule to the optimizer when it is made: optimizer.SGD(schedule)",
    "Optimizer.step": "optimizer.minimize(loss) once, while the program is built; each exe.run(main, ...) is a step",
    "Optimizer.clear_grad": "nothing needs to be cleared: each run computes its gradients anew",
    "Executor.train_from_dataset": "for batch in io.DataLoader(dataset, batch_size=32): exe.run(main, feed=...)",
    "optimizer.LBFGS": "optimizer.Adam, optimizer.Momentum; or fetch loss and gradients and call"
        " scipy.optimize.minimize(method='L-BFGS-B')",
}  # fmt: skip

OWN_REASON = {  # instead of that of the family
    "tensor.create_tensor": "it is a variable without a type, and all variables of a program have one",
    "poisson": "how many random numbers it draws depends on values, and random numbers are counted",
    "Variable.top_p_sampling": "Paddle 2.6.2 has no kernel for it on a CPU either",
    "optimizer.LBFGS": "it evaluates the loss several times in one step, a run of a program does so once",
}


def reason_of(space: str, name: str) -> Absence:
    """Why `name` of a namespace is not here, and what to use instead."""
    key = f"{space}.{name}" if space else name
    family = next(
        (f for where, f, names in ROWS if where in ("*", space) and any(fnmatchcase(name, n) for n in names.split())),
        DEFAULT.get(space, "later"),
    )  # fmt: skip
    why, instead = FAMILIES[family]
    instead = INSTEAD.get(key) or (INSTEAD.get(name) if space == "Variable" else None) or instead
    return Absence(OWN_REASON.get(key, why), instead)
