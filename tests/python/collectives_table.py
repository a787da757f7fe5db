"""Measures docs/collectives.md: which operation serves which dtype and reduce op, on tn and on gloo.

    .venv/bin/python tests/python/collectives_table.py > docs/collectives.md

Each combination runs on three ranks, and counts only if the values that come are right. test_grid.py compares the page with what it measures.
"""

from pathlib import Path

import reference
import torch
import torch.distributed as dist
from conftest import World
from reference import DTYPES, MOVES, OPS, REDUCTIONS, Call

PAGE = Path(__file__).resolve().parents[2] / "docs" / "collectives.md"
RANKS = 3
COUNT = 100
MARKS = {("yes", "yes"): "both", ("yes", "no"): "**tn**", ("yes", "wrong"): "**tn**¹", ("no", "no"): "–"}
TITLES = {
    reference.all_reduce: "`all_reduce`",
    reference.all_reduce_coalesced: "`all_reduce_coalesced`",
    reference.reduce: "`reduce`",
    reference.reduce_scatter: "`reduce_scatter`, parts of different sizes",
    reference.reduce_scatter_equal: "`reduce_scatter`, parts of one size",
    reference.reduce_scatter_tensor: "`reduce_scatter_tensor` (`reduce_scatter_single`)",
    reference.broadcast: "`broadcast`",
    reference.all_gather: "`all_gather`",
    reference.all_gather_uneven: "`all_gather`, different sizes",
    reference.all_gather_into_tensor: "`all_gather_into_tensor` (`all_gather_single`)",
    reference.gather: "`gather`",
    reference.scatter: "`scatter`",
    reference.all_to_all: "`all_to_all`",
    reference.all_to_all_single: "`all_to_all_single`, uneven",
    reference.send_recv: "`send`, `recv`",
}


def outcome(verb, call):
    try:
        pairs = verb(call)
    except (RuntimeError, ValueError, TypeError):
        return "no"
    try:
        for got, want in pairs:
            if call.op == "AVG":  # gloo rounds twice
                torch.testing.assert_close(got.float() if got.itemsize == 1 else got, want.float() if want.itemsize == 1 else want)
            else:
                reference.same(got, want, "")
    except AssertionError:
        return "wrong"
    return "yes"


def measured(rank, size):
    groups = {"tn": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    return {
        (verb.__name__, dtype, op): tuple(outcome(verb, Call(group, rank, size, dtype, COUNT, op)) for group in groups.values())
        for verb in REDUCTIONS + MOVES
        for dtype in DTYPES
        for op in (OPS if verb in REDUCTIONS else ["SUM"])
    }


def worst(answers):
    """Of what the ranks saw: only the root of a reduce sees its value."""
    return tuple(max(seen, key=["yes", "wrong", "no"].index) for seen in zip(*answers))


def row(cells):
    return "| " + " | ".join(cells) + " |"


def short(dtype):
    return str(dtype).removeprefix("torch.")


def page(results):
    def cell(verb, dtype, op="SUM"):
        return MARKS[results[verb.__name__, dtype, op]]

    lines = [
        "# Operations, dtypes and reduce ops",
        "",
        f"What `torch.distributed` does on backend tn and on gloo, measured with torch {torch.__version__.partition('+')[0]} on {RANKS} ranks by",
        "`tests/python/collectives_table.py`, which writes this page. both: tn and gloo give the right values. **tn**: tn does, gloo refuses.",
        "–: refused by name on every rank, and the group goes on; gloo refuses too.",
        "",
        "Half and eight-bit floats are reduced in float32 and rounded once; integers wrap; the AVG of integers truncates; complex tensors have no order.",
        "Every rank ends with identical bits. `tests/python/test_grid.py` compares all of this on 1 to 7 ranks and with up to a million elements.",
        "complex32 travels as pairs of float16; what has no arithmetic at all (int4, bits8, float4) by `send` and `recv` only, as on gloo.",
        "",
        "¹ gloo's sum of bools adds the bytes: the result holds numbers above 1.",
        "",
        "## Reductions",
    ]
    tables = {}
    for verb in REDUCTIONS:
        text = [row([f"`{short(dtype)}`", *(cell(verb, dtype, op) for op in OPS)]) for dtype in DTYPES]
        tables.setdefault("\n".join(text), []).append(TITLES[verb])
    for text, titles in tables.items():
        lines += ["", "; ".join(titles) + ":", "", row(["", *OPS]), "|" + "---|" * (len(OPS) + 1), text]
    lines += ["", "## Moves", "", row(["", *map(TITLES.get, MOVES)]), "|" + "---|" * (len(MOVES) + 1)]
    lines += [row([f"`{short(dtype)}`", *(cell(verb, dtype) for verb in MOVES)]) for dtype in DTYPES]
    return "\n".join(lines) + "\n"


def measure(world):
    answers = world.run(measured, seconds=120)
    return page({key: worst([seen[key] for seen in answers]) for key in answers[0]})


def main():
    world = World(RANKS)
    try:
        print(measure(world), end="")
    finally:
        world.stop()


if __name__ == "__main__":
    main()
