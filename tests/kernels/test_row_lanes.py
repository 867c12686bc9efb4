"""How many threads share a row of a fused kernel: few, as far as registers allow (decision 058)."""

from __future__ import annotations

import minigraph as mg
from minigraph.kernels.cuda.fused.rows import _lanes


def test_threads_are_added_only_where_registers_do_not_hold_the_row():
    found = [_lanes(192, 4, words) for words in (3, 6, 8, 11)]
    assert found == [(32, 6), (64, 3), (128, 2), (128, 2)]
    assert [_lanes(packs, 4, 6) for packs in (2, 96, 512, 1024)] == [(2, 1), (32, 3), (256, 2), (512, 2)]
    assert _lanes(2048, 4, 6) is None


def test_norms_of_a_block_in_16_bits_have_64_threads_for_768_numbers():
    """Forward; and backward, whose inputs take half a register each until they are used."""
    main = mg.static.Program()
    with mg.static.program_guard(main, mg.static.Program()):
        words = mg.static.data("words", [4, 1024], "int64")
        block = mg.nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", normalize_before=True)
        loss = mg.mean(mg.nn.LayerNorm(768)(block(block(mg.nn.Embedding(50, 768)(words)))))
        mg.static.amp.decorate(mg.optimizer.AdamW(1e-3), level="O2", dtype="bfloat16").minimize(loss)
    kernels = mg.static.CompiledProgram(main, mg.static.BuildStrategy.all()).kernels({}, [loss])
    found = {k.members: k.source for k in kernels if k.name == "fused_rows"}
    forward = found["elementwise_add", "cast", "layer_norm"]
    backward = found["layer_norm_again", "layer_norm_grad", "sum", "column_sums"]
    assert "#define LANES 64\n" in forward and "#define LANES 64\n" in backward
    assert ANEW not in forward and backward.count(ANEW) == 1  # the bias, which registers do not hold


ANEW = 'asm volatile("" : "+l"(from))'
