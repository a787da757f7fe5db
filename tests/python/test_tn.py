"""The native module without a network: layouts, blocks, files, reductions and what they refuse."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from torchnative import _tn

MODEL = {
    "fc.weight": torch.arange(6.0).view(2, 3).t(),
    "fc.bias": torch.tensor([0.5, -1.5], dtype=torch.bfloat16),
    "steps": torch.tensor(7),
    "on": torch.tensor([True, False, True]),
    "none": torch.empty(0, 4),
}


def layout_of(tensors):
    return _tn.Layout((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())


def block_of(layout):
    return torch.zeros(layout.nbytes, dtype=torch.uint8)


def test_pack_and_unpack_are_inverse_and_take_strides():
    layout = layout_of(MODEL)
    block = block_of(layout)
    layout.pack(MODEL, block)
    for name, number, shape, offset, nbytes in layout.entries:
        dtype = MODEL[name].dtype
        assert _tn.DTYPES[str(dtype).removeprefix("torch.")] == number
        assert torch.equal(block[offset : offset + nbytes].view(dtype).view(shape), MODEL[name])
    back = {name: torch.zeros_like(tensor) for name, tensor in MODEL.items()}
    layout.unpack(block, back)
    assert all(torch.equal(back[name], MODEL[name]) for name in MODEL)
    assert layout.count == len(MODEL) and sum(entry[4] for entry in layout.entries) == layout.nbytes


def test_runs_cover_the_block_by_dtype():
    layout = _tn.Layout([("a", torch.float32, (3,)), ("b", torch.int32, (2,)), ("c", torch.float32, (1,)), ("d", torch.float64, ())])
    runs = layout.runs()
    assert sum(nbytes for _, _, nbytes in runs) == layout.nbytes
    assert [offset for _, offset, _ in runs] == [0] + [offset + nbytes for _, offset, nbytes in runs][:-1]
    assert all(first[0] != second[0] for first, second in zip(runs, runs[1:]))


def test_delta_and_apply_give_the_local_model_back():
    layout = layout_of(MODEL)
    base, local, delta = block_of(layout), block_of(layout), block_of(layout)
    layout.pack(MODEL, base)
    trained = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in MODEL.items()}
    trained["steps"] = torch.tensor(12)
    layout.pack(trained, local)
    layout.delta(local, base, delta)
    layout.check_update(delta, 10, "me")
    layout.apply(base, delta)
    assert torch.equal(base, local)


@pytest.mark.parametrize(
    "tensor, words",
    [
        (torch.zeros(3, 2).to_sparse(), "dense"),
        (torch.zeros(3, 2, device="meta"), "meta"),
        (torch.zeros(3, 2, dtype=torch.float64), "float64"),
        (torch.zeros(2, 3), r"\[2, 3\].*\[3, 2\]"),
        ([0.0], "torch.Tensor"),
        (None, "torch.Tensor"),
    ],
    ids=["sparse", "meta", "dtype", "shape", "list", "None"],
)
def test_a_tensor_that_does_not_fit_is_named(tensor, words):
    layout = layout_of(MODEL)
    with pytest.raises((ValueError, TypeError), match=f"fc.weight.*{words}"):
        layout.pack({**MODEL, "fc.weight": tensor}, block_of(layout))


def test_lazy_conjugates_are_refused():
    layout = _tn.Layout([("z", torch.complex64, (2,))])
    with pytest.raises(ValueError, match="resolve_conj"):
        layout.pack({"z": torch.zeros(2, dtype=torch.complex64).conj()}, block_of(layout))


def test_missing_and_surplus_tensors_are_refused():
    layout = layout_of(MODEL)
    with pytest.raises(ValueError, match="steps"):
        layout.pack({name: tensor for name, tensor in MODEL.items() if name != "steps"}, block_of(layout))
    with pytest.raises(ValueError, match="6 tensors.*5"):
        layout.pack({**MODEL, "more": torch.zeros(1)}, block_of(layout))


@pytest.mark.parametrize("block", [torch.zeros(3, dtype=torch.uint8), torch.zeros(10), torch.zeros(2, 2, dtype=torch.uint8)])
def test_a_block_of_another_size_or_kind_is_refused(block):
    with pytest.raises(ValueError, match="block"):
        layout_of(MODEL).pack(MODEL, block)


def test_same_names_the_first_difference():
    layout = layout_of(MODEL)
    layout.same(layout_of(dict(reversed(MODEL.items()))), "one", "other")
    with pytest.raises(ValueError, match="fc.weight.*mine.*yours") as caught:
        layout.same(layout_of({**MODEL, "fc.weight": torch.zeros(3, 3)}), "mine", "yours")
    assert caught.value.code == "TN_ESHAPE"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_updates_that_are_not_finite_are_refused(value):
    layout = _tn.Layout([("w", torch.float32, (4,))])
    block = block_of(layout)
    block.view(torch.float32)[2] = value
    with pytest.raises(_tn.Refused, match="w") as caught:
        layout.check_update(block, 5, "a-client")
    assert caught.value.code == "TN_ENONFINITE" and "a-client" in str(caught.value)


@pytest.mark.parametrize("examples", [0, -1, 2**41, 2**70])
def test_updates_with_a_senseless_count_are_refused(examples):
    layout = _tn.Layout([("w", torch.float32, (4,))])
    with pytest.raises(ValueError):
        layout.check_update(block_of(layout), examples, "a-client")


def test_files_are_those_of_the_safetensors_package(tmp_path):
    layout = layout_of(MODEL)
    block = block_of(layout)
    layout.pack(MODEL, block)
    _tn.safetensors_write(tmp_path / "ours.safetensors", layout, block, {"round": "3"})
    theirs = load_file(tmp_path / "ours.safetensors")
    assert theirs.keys() == MODEL.keys() and all(torch.equal(theirs[name], MODEL[name]) for name in MODEL)

    save_file({name: tensor.contiguous() for name, tensor in MODEL.items()}, tmp_path / "theirs.safetensors", {"a": "b"})
    read, data, meta = _tn.safetensors_read(tmp_path / "theirs.safetensors")
    read.same(layout, "theirs", "ours")
    assert bytes(data) == bytes(block.numpy()) and meta == {"a": "b"}
    _tn.safetensors_write(tmp_path / "again.safetensors", read, data, None)
    assert _tn.safetensors_read(tmp_path / "again.safetensors")[2] is None


def test_files_that_are_missing_or_malformed_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.safetensors"):
        _tn.safetensors_read(tmp_path / "nowhere.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises((ValueError, RuntimeError), match="bad.safetensors"):
        _tn.safetensors_read(tmp_path / "bad.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32])
def test_reduce_is_torchs_sum(dtype):
    sources = [(torch.arange(1001) % 17 + k).to(dtype) for k in range(3)]
    out = torch.empty(1001, dtype=dtype)
    _tn.reduce("SUM", out, sources)
    assert torch.equal(out, torch.stack(sources).double().sum(0).to(dtype))


def test_reduce_wmean_weights_and_ignores_weight_zero():
    out = torch.empty(2)
    _tn.reduce("WMEAN", out, [torch.tensor([1.0, 2.0]), torch.tensor([float("nan")] * 2), torch.tensor([4.0, 8.0])], [1, 0, 2])
    assert torch.equal(out, torch.tensor([3.0, 6.0]))


def test_reduce_refuses_what_makes_no_sense():
    two = torch.zeros(2)
    for op, sources, weights, words in [
        ("BAND", [two], None, "BAND.*float32"),
        ("WMEAN", [two], [0.0], "zero"),
        ("WMEAN", [two], [-1.0], "negative"),
        ("WMEAN", [two], None, "weights"),
        ("WMEAN", [two, two], [1.0], "1 weights for 2"),
        ("MEDIAN", [two], None, "MEDIAN"),
        ("SUM", [], None, "at least one"),
        ("SUM", [torch.zeros(3)], None, r"float32\[3\].*float32\[2\]"),
        ("SUM", [torch.zeros(4)[::2]], None, "contiguous"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=words):
            _tn.reduce(op, two, sources, weights)


def test_the_kernels_say_what_they_run_on():
    chosen = _tn.kernel_variant()
    assert chosen in ("scalar", "baseline", "avx2", "avx512")
    _tn.force_kernel("scalar")
    try:
        assert _tn.kernel_variant() == "scalar"
    finally:
        _tn.force_kernel(chosen)
    with pytest.raises(Exception, match="abacus"):
        _tn.force_kernel("abacus")


def test_errors_carry_their_code():
    assert issubclass(_tn.PeerError, ConnectionError) and issubclass(_tn.Cancelled, RuntimeError)
    with pytest.raises(FileNotFoundError) as caught:
        _tn.safetensors_read("/no/such/file")
    assert re.fullmatch("TN_[A-Z]+", caught.value.code)
