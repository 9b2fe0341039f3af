"""What torch.compile makes of the model and its parts; in one file, because importing the compiler takes seconds."""

import shutil
import sys
from dataclasses import replace

import pytest
import torch
from lingbot_world.loaders import load_expert
from lingbot_world.model.attention.choose_8bit import attend_8bit
from lingbot_world.model.attention.fp8 import to_operands
from lingbot_world.model.ops.implementation import implementation
from lingbot_world.toy.experts import write_expert_folder
from model_cases import SMALL, random_inputs, random_state
from pointwise_cases import NAMES, check
from test_model_pointwise import TOLERANCE
from test_nf4 import quantized
from torch.nn import functional as F

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or sys.platform == "win32", reason="torch.compile on the CPU needs g++"
)


def test_torch_compile_takes_the_whole_model(tmp_path):
    """With products in 8 bits; attention in 8 bits is compiled by itself."""
    config = replace(SMALL, num_layers=1)  # tracing a block takes seconds
    write_expert_folder(tmp_path, config, random_state(config).items(), quant_type=None)
    model, inputs = load_expert(tmp_path, dtype=torch.float32), random_inputs(config, 2, (2, 4, 4))
    model.set_arithmetic("fp8")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**inputs), model(**inputs), atol=1e-5, rtol=0)


def test_keys_and_values_in_8_bits_compile_without_graph_breaks():
    q, k, v = torch.randn(3, 1, 32, 128).unbind()
    kept = to_operands(q, k, v)[1:]
    compiled = torch.compile(attend_8bit, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q.clone(), *kept, 2, {}), attend_8bit(q.clone(), *kept, 2, {}))


@pytest.mark.parametrize("in_features", [128, 80])
def test_a_4_bit_product_compiles_without_graph_breaks(in_features):
    weight, x = quantized((48, in_features)), torch.randn(4, in_features).bfloat16()
    compiled = torch.compile(lambda x, w: F.linear(x, w).float() + 1, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, weight), F.linear(x, weight).float() + 1)


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_element_wise_parts(name, caplog):
    compiled = implementation(name, "cpu", "compile")
    for tokens in (128, 300) if name == NAMES[0] else (128,):
        check(compiled, name, tokens, 96, torch.bfloat16, "cpu", TOLERANCE[torch.bfloat16])
    assert "slower" not in caplog.text, "fell back to eager"
