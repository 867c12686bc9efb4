"""fuse_foreach: operators that compute the same on many tensors become one operator on lists.

    v_i' = elementwise_add(scale(v_i), g_i);  p_i' = elementwise_sub(p_i, v_i')
        ->  foreach_elementwise(X=[v_0, v_1, ..., p_0, p_1, ..., g_0, g_1, ...])
    p_norm(x_0), p_norm(x_1), ...  ->  foreach_p_norm(x_0, x_1, ...)

An update that a user writes is so one launch for all parameters, as the built-in ones are, and values on the way are
not written. Parameters and states are updated in place. A chain of operators on one tensor joins others of the same
body and the same data types, whatever the tensors' shapes are; what all read, such as a learning rate, is read once.

Of the role optimize, operators may change places: chains.py says how. Of other roles only operators that stand next to
each other are joined; that is how `mg.foreach` writes them. A chain of large values that fuse_elementwise can join with
a neighbour is left to it.

Operators on lists hold all that they read beside all that they write. Where that is more than the program needs
elsewhere (engine/lives.py), as of casts of all gradients, lists are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from minigraph.errors import MinigraphError
from minigraph.ir.graph import Graph, OpNode, VarNode
from minigraph.opdef import get_op
from minigraph.opdef.body import Member, format_member
from minigraph.passes.elementwise.groups import is_candidate
from minigraph.passes.engine.lives import FREE, Lives, LiveStep, step_of
from minigraph.passes.engine.log import Applied, PassReport
from minigraph.passes.engine.rule import Refused, refuse_unless

from .chains import LISTED, Chain, Chains, is_listed, is_member

RULE = "Foreach"
MOST_MEMBERS, MOST_COLUMNS = 48, 24  # what a kernel keeps in registers, and addresses of a tensor
LAUNCH = 1 << 20  # bytes that move in the time of a launch: for less it pays to save one


class ChainKind(NamedTuple):
    """What chains must have in common: the lines, data types, and which values are one number for a larger tensor."""

    lines: tuple[str, ...]
    types: tuple[str, ...]
    numbers: tuple[bool, ...] | None  # None for a tensor of one element, which fits all


def fuse_foreach(graph: Graph, report: PassReport) -> int:
    """Look for groups of equal chains in each run of operators."""
    lives = Lives(graph)
    for run in list(_runs(graph)):
        _join(graph, run, report, lives)
    return len(report.applied)


def _runs(graph: Graph) -> Iterator[list[OpNode]]:
    """Operators that may change places: neighbours of the role optimize, or neighbours that work on elements."""
    for (role, _), ops in groupby(graph.ops, key=lambda op: (op.role, op.role == "optimize" or _joins(op))):
        run = list(ops)
        if len(run) > 1 and (role == "optimize" or _joins(run[0])):
            yield run


def _joins(op: OpNode) -> bool:
    return is_member(op) or is_listed(op)


def _join(graph: Graph, run: Sequence[OpNode], report: PassReport, lives: Lives) -> None:
    """Put one operator in the place of each group of equal chains."""
    found = Chains(run)
    groups: dict[tuple[int, ChainKind], list[Chain]] = {}
    for level, chain in found.chains:
        try:
            signature = _checked(chain)
        except Refused as no:
            report.refuse(RULE, chain.ops[-1].label(), str(no), chain.ops[-1].site)
            continue
        groups.setdefault((level, signature), []).append(chain)
    _place_numbers(groups)
    chosen = [chains for chains in groups.values() if _pays(chains)]
    for (level, signature), chains in groups.items():
        if chains not in chosen and run[0].role == "optimize":
            _tell_alone(level, signature, chains[0], groups, report)
    chosen = _fitting(run, found.order, chosen, report, lives) if chosen else []
    if not chosen:
        return
    ranks = [op.rank for op in run]
    for op, rank in zip(found.order, ranks, strict=True):
        if op.rank != rank:
            graph.move_op(op, rank)
    for chains in chosen:
        try:
            report.apply(_emit(graph, chains, report.name))
        except Refused as no:
            report.refuse(RULE, chains[0].ops[-1].label(), str(no), chains[0].ops[-1].site)


def _checked(chain: Chain) -> ChainKind:
    """The ChainKind of a chain that one kernel can compute; refuses others."""
    if is_listed(chain.ops[0]):
        op = chain.ops[0]
        refuse_unless(op.inputs["X"][0].type.is_static, "a size of {} is unknown", op.inputs["X"][0].name)
        return ChainKind((op.type, repr(op.attrs)), (op.inputs["X"][0].dtype.name,), ())
    refuse_unless(len(chain.ops) <= MOST_MEMBERS, "{} operators meet, a kernel has at most {} members",
                  len(chain.ops), MOST_MEMBERS)  # fmt: skip
    reads, writes = chain.reads, chain.writes
    count = len(reads) + len(writes)
    refuse_unless(count <= MOST_COLUMNS, "{} values of a tensor are read and written, {} can be", count, MOST_COLUMNS)
    refuse_unless(writes, "nobody reads what it writes")
    for v in writes:
        newer = v.next_version
        refuse_unless(newer is None or newer.producer not in chain.inside, "{} is written twice", v.name)
    for v in [v for op in chain.ops for v in op.output_vars if v not in writes]:
        refuse_unless(v.next_version is None, "{} is written again", v.name)
    if chain.ops[0].role != "optimize":
        _leave_to_fuse_elementwise(chain)
    names = _names(chain, range(len(reads)))
    lines = tuple(format_member(m) for m in _members(chain, names))
    types = tuple(v.dtype.name for v in names)
    numbers = tuple(v.type.size == 1 for v in reads) if chain.size != 1 else None
    return ChainKind(lines, (*types, str(len(chain.updated))), numbers)


def _leave_to_fuse_elementwise(chain: Chain) -> None:
    """Refuse where a large value comes from or goes to an operator with which a kernel could be shared."""
    for v in (*chain.reads, *chain.writes):
        if v.shape == chain.shape and v.type.nbytes > LAUNCH:
            for op in v.users:
                refuse_unless(op in chain.inside or not is_candidate(op), "{} is left to share a kernel with {}",
                              chain.ops[0], op)  # fmt: skip


def _place_numbers(groups: dict[tuple[int, ChainKind], list[Chain]]) -> None:
    """Tensors of one element join the largest group of their body."""
    for (level, signature), chains in list(groups.items()):
        if signature.numbers is None:
            alike = [k for k in groups if k[0] == level and k[1][:2] == signature[:2] and k[1].numbers is not None]
            if alike:
                groups[max(alike, key=lambda k: len(groups[k]))] += chains
                del groups[level, signature]


def _pays(chains: Sequence[Chain]) -> bool:
    """Whether one operator is better than what fuse_elementwise makes, which leaves alone what is updated in place."""
    return len(chains) > 1 or (bool(chains[0].updated) and len(chains[0].ops) > 1)


def _fitting(
    run: Sequence[OpNode], order: Sequence[OpNode], chosen: list[list[Chain]], report: PassReport, lives: Lives
) -> list[list[Chain]]:
    """The lists, cut so that the graph needs no more memory; none where the order alone needs more."""
    lists = _Lists(run, order)
    before = lists.steps([])
    if lives.more(before, lists.steps(chosen)) <= FREE:  # as of most
        return chosen
    fitting = list[list[Chain]]()
    for chains in chosen:
        limit, cut = sum(map(_moved, chains)), [chains]
        while cut and lives.more(before, lists.steps([*fitting, *cut])) > FREE:
            limit //= 2
            cut = _cut(chains, limit) if limit else []
        fitting += cut
        if cut != [chains]:
            op, kept = chains[-1].ops[-1], sum(map(len, cut))
            why = f"all {len(chains)} tensors of a list need more memory at once; {kept} are in {len(cut)} lists"
            report.refuse(RULE, op.label(), why, op.site)
    return fitting


def _moved(chain: Chain) -> int:
    """The bytes that a chain reads and writes."""
    return sum(v.type.least_bytes for v in (*chain.reads, *chain.writes))


def _cut(chains: Sequence[Chain], limit: int) -> list[list[Chain]]:
    """Lists that move at most so many bytes; without what would be alone in one."""
    cut, size = [list[Chain]()], 0
    for chain in chains:
        moved = _moved(chain)
        if cut[-1] and size + moved > limit:
            cut.append([])
            size = 0
        cut[-1].append(chain)
        size += moved
    return [some for some in cut if _pays(some)]


class _Lists(NamedTuple):
    """A run of operators, and the order in which chains stand together."""

    run: Sequence[OpNode]
    order: Sequence[OpNode]

    def steps(self, lists: Sequence[Sequence[Chain]]) -> list[LiveStep]:
        """What runs, with these lists at the places of their last operators; the run as it is without lists."""
        joined = {op: chains for chains in lists for chain in chains for op in chain.ops}
        steps = []
        for op, rank in zip(self.order if lists else self.run, [op.rank for op in self.run], strict=True):
            chains = joined.get(op)
            if chains is None:
                steps.append(step_of(op)._replace(rank=rank))
            elif op is chains[-1].ops[-1]:
                ops = [op for chain in chains for op in chain.ops]
                reads = [v for chain in chains for v in chain.reads]
                writes = [v for chain in chains for v in chain.writes]
                steps.append(LiveStep(rank, ops, reads, writes))
        return steps


def _tell_alone(
    level: int, signature: ChainKind, chain: Chain, groups: dict[tuple[int, ChainKind], list[Chain]], report: PassReport
) -> None:  # fmt: skip
    """Report a chain that is nearly as others are, with the difference."""
    op = chain.ops[-1]
    types = [op.type for op in chain.ops]
    for (other_level, other), chains in groups.items():
        first = chains[0].ops[-1]
        if chains[0] is chain or [op.type for op in chains[0].ops] != types:
            continue
        if other.lines != signature.lines:
            own, its = next((a, b) for a, b in zip(signature.lines, other.lines, strict=True) if a != b)
            why = f"it computes {own}, {first.label()} {its}"
        elif other.types != signature.types:
            why = f"it differs from {first.label()} in data types"
        elif other_level != level:
            why = f"{first.label()} computes the same, but one must run before the other"
        else:
            why = f"it differs from {first.label()} in what is one number for a tensor"
        report.refuse(RULE, op.label(), f"alone: {why}", op.site)
        return


def _names(chain: Chain, order: Sequence[int]) -> dict[VarNode, str]:
    """What a body calls the values of a chain; `order` has the numbers of `reads` in the order of the inputs.

    A value inside that is only copied to where it goes has the name of the copy.
    """
    names = {chain.reads[k]: f"x{i}" for i, k in enumerate(order)}
    names |= {v: f"y{i}" for i, v in enumerate(chain.writes)}
    for op in chain.ops:
        if (copied := _copied(op)) is not None and copied not in names:
            names[copied] = names[op.outputs["Out"][0]]
    inner = [v for op in chain.ops for v in op.output_vars if v not in names]
    return names | {v: f"t{i}" for i, v in enumerate(inner)}


def _copied(op: OpNode) -> VarNode | None:
    """The value that an operator writes once more as a result; None for others."""
    copies, (out, *more) = op.opdef.copies.get("Out", ("", "")) == ("X", ""), op.output_vars
    x = op.inputs["X"][0] if copies and not more else None
    return x if x is not None and x.type == out.type and out.pinned is not None else None


def _members(chain: Chain, names: dict[VarNode, str]) -> list[Member]:
    """The operators of a chain but for copies of what has the copy's name."""
    kept = [op for op in chain.ops if (copied := _copied(op)) is None or names[copied] != names[op.outputs["Out"][0]]]

    def named(slots: dict[str, list[VarNode]]) -> dict[str, list[str]]:
        return {slot: [names[v] for v in vs] for slot, vs in slots.items()}

    return [Member(op.opdef, named(op.inputs), named(op.outputs), op.attrs) for op in kept]


def _emit(graph: Graph, chains: Sequence[Chain], rewriter: str) -> Applied:
    """Replace the chains by one operator; refuses with the graph unchanged."""
    first, last = chains[0], chains[-1].ops[-1]
    op_type, inputs, outputs, given = _listed(chains) if is_listed(last) else _fused(chains)
    opdef = get_op(op_type)
    attrs = opdef.bind_attrs(given)
    try:
        types = opdef.infer_types({slot: [v.type for v in vs] for slot, vs in inputs.items()}, attrs)["Out"]
    except MinigraphError as no:
        raise Refused(no.fact) from None
    for v, t in zip(outputs, types, strict=True):
        refuse_unless(v.type == t, "{} would become {}", v, t)
    labels = [op.label() for chain in chains for op in chain.ops]
    shown = (*labels[:4], f"{len(labels) - 4} more") if len(labels) > 5 else tuple(labels)
    for op in [op for chain in chains for op in reversed(chain.ops)]:
        for grad in list(op.grads):
            graph.link(grad, None)
        graph.remove_op(op)
    graph.add_op(
        OpNode(
            opdef, inputs, {"Out": outputs}, attrs, rank=last.rank, role=last.role, site=last.site,
            number=first.ops[0].number, scope_name=last.scope_name, rewriter=rewriter,
        )
    )  # fmt: skip
    kept = set(outputs)
    for v in [v for chain in chains for op in chain.ops for v in op.output_vars if v not in kept]:
        graph.remove_var(v)
    what = f"{outputs[0].name}, ... = {op_type} of {len(chains)} tensors"
    return Applied(RULE, what, shown, last.site, last.role)


Call = tuple[str, dict[str, list[VarNode]], list[VarNode], dict[str, Any]]  # type, inputs, outputs, attributes


def _listed(chains: Sequence[Chain]) -> Call:
    ops = [chain.ops[0] for chain in chains]
    inputs, outputs = [op.inputs["X"][0] for op in ops], [op.outputs["Out"][0] for op in ops]
    return LISTED[ops[0].type], {"X": inputs}, outputs, ops[0].attrs


def _fused(chains: Sequence[Chain]) -> Call:
    """One body for all; a number that is the same value for all is read once."""
    first, small = chains[0], all(chain.size == 1 for chain in chains)
    shared = [
        k for k, v in enumerate(first.reads)
        if v.type.size == 1 and not small and len({chain.reads[k] for chain in chains}) == 1
    ]  # fmt: skip
    columns = [k for k in range(len(first.reads)) if k not in shared]
    inputs = {"X": [chain.reads[k] for k in columns for chain in chains]}
    if shared:
        inputs["Shared"] = [first.reads[k] for k in shared]
    outputs = [chain.writes[k] for k in range(len(first.writes)) for chain in chains]
    body = tuple(format_member(m) for m in _members(first, _names(first, [*columns, *shared])))
    return "foreach_elementwise", inputs, outputs, {"body": body, "count": len(chains)}
