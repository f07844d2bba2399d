"""A plan as the launch configuration of a training framework, by the framework's own rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from paraplan.balance.lists import write_lists
from paraplan.foundation.errors import InputError
from paraplan.plan.published import PublishedLayout, PublishedTraining, read_plan_json
from paraplan.schedules.orders import model_order

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Launch:
    """What an export needs of a plan."""

    parallel: PublishedLayout
    training: PublishedTraining
    layers: Rows
    """``[vpp][pp]``."""
    recompute: Mapping[str, Rows]
    schedule: str
    mtp: int
    """Multi-token-prediction layers."""
    moved: Mapping[str, Rows] = field(default_factory=dict)
    """Ends of the model (embedding, mtp, head) that were placed by balancing, and where."""

    @property
    def total(self) -> int:
        return sum(map(sum, self.layers))

    @property
    def recomputes(self) -> set[str]:
        """Strategies that some layer uses."""
        return {name for name, table in self.recompute.items() if any(map(any, table))}

    def in_model_order(self, table: Rows) -> list[int]:
        """The counts of a table from the first place of the model to the last."""
        return [table[v][s] for v, s in model_order(self.schedule, len(table[0]), len(table))]


def launch_of(document: Mapping[str, Any], rank: int, where: str) -> Launch:
    """The parts of a ``plan.json`` that matter.

    Raises:
        InputError: not a plan, or no plan of that rank.
    """
    plan, training = read_plan_json(document, rank, where)
    pipeline = plan.pipeline
    return Launch(
        plan.parallel,
        training,
        pipeline.layers,
        pipeline.recompute,
        pipeline.schedule,
        pipeline.described("mtp"),
        {name: pipeline.placed(name) for name in ENDS if name in pipeline.assignment},
    )


def export(launch: Launch, framework: str) -> str:
    """The text of the configuration.

    Raises:
        InputError: an unknown framework, or something that it cannot express.
    """
    writer = _WRITERS.get({"hyper_v2": "hyperparallel", "nemo": "megatron"}.get(framework, framework))
    if writer is None:
        raise InputError(f"--to: {framework!r} found, one of {', '.join(_WRITERS)} is allowed")
    return writer(launch)


ENDS = {"embedding": "E", "mtp": "m", "head": "L"}
"""Layer types beside the transformer's, and their letters in Megatron's layout."""


def pipeline_layout(launch: Launch) -> str:
    """Megatron's ``--pipeline-model-parallel-layout``: stages in model order, E embedding, t layer, m MTP, L loss.

    Raises:
        InputError: ends of the model where Megatron cannot have them.
    """
    flat = ["t" * count for count in launch.in_model_order(launch.layers)]
    where = {name: launch.in_model_order(launch.moved[name]) if name in launch.moved else None for name in ENDS}
    embedding, mtp, head = where.values()
    if embedding is not None and not embedding[0]:
        raise InputError("movable embedding: Megatron-LM keeps it on the first stage; plan without it in movable")
    if head is not None and not head[-1]:
        raise InputError("movable head: Megatron-LM keeps the loss on the last chunk; plan without it in movable")
    if mtp is not None and sum(count > 0 for count in mtp) > 1:
        raise InputError("movable mtp: Megatron-LM keeps all prediction layers on one chunk")
    place = mtp.index(max(mtp)) if mtp is not None else len(flat) - 1
    flat[place] += "m" * launch.mtp
    flat[0] = "E" + flat[0]
    flat[-1] += "L"
    return "|".join(flat)


def _even(launch: Launch) -> bool:
    return len({count for row in launch.layers for count in row}) == 1


def _megatron(launch: Launch) -> str:
    """Flags of Megatron Core, one a line."""
    row, training = launch.parallel, launch.training
    if launch.schedule not in ("1f1b", "interleaved"):
        raise InputError(f"schedule {launch.schedule}: Megatron-LM runs 1f1b and interleaved")
    flags = [
        f"--tensor-model-parallel-size {row.tp}",
        f"--pipeline-model-parallel-size {row.pp}",
        f"--context-parallel-size {row.cp}",
        f"--micro-batch-size {row.mbs}",
        f"--global-batch-size {training.global_batch}",
        f"--seq-length {training.sequence_length}",
    ]
    flags += ["--sequence-parallel"] if row.sp else []
    if row.ep > 1:
        flags += [f"--expert-model-parallel-size {row.ep}", f"--expert-tensor-parallel-size {row.etp}"]
    if row.pp > 1 and (not _even(launch) or launch.mtp or launch.moved):
        flags.append(f"--pipeline-model-parallel-layout '{pipeline_layout(launch)}'")
    elif row.vpp > 1:
        flags.append(f"--num-layers-per-virtual-pipeline-stage {launch.layers[0][0]}")
    if row.zero_stage == 1:
        flags += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    elif row.zero_stage > 1:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[row.zero_stage]
        flags += ["--use-distributed-optimizer", "--use-megatron-fsdp", f"--data-parallel-sharding-strategy {strategy}"]
    flags += _megatron_recompute(launch)
    precision = training.precision
    flags.append("--fp16" if precision == "fp16" else "--bf16")
    if precision.startswith(("fp8", "mxfp8")):
        flags.append("--fp8-format hybrid")
    return "\n".join(flags) + "\n"


def _megatron_recompute(launch: Launch) -> list[str]:
    used = launch.recomputes
    if used <= {"none"}:
        return []
    if used == {"select"}:
        return ["--recompute-activations"]
    if used == {"full"}:
        return ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"]
    if used == {"none", "full"}:
        counts = {count for row in launch.recompute["full"] for count in row}
        if len(counts) == 1:
            return [
                "--recompute-granularity full",
                "--recompute-method block",
                f"--recompute-num-layers {counts.pop()}",
            ]
    raise InputError(
        f"recompute {', '.join(sorted(used))} differs between stages: Megatron-LM has one setting for all;"
        " plan with framework: megatron, or export to mindformers"
    )


def _mindspeed(launch: Launch) -> str:
    """MindSpeed-LLM takes Megatron's flags."""
    return _megatron(launch) + "--use-flash-attn\n"


def _at_the_ends(launch: Launch, framework: str) -> None:
    """Refuse ends of the model that balancing moved away from them."""
    for name, grid in launch.moved.items():
        places = launch.in_model_order(grid)
        if places[0 if name == "embedding" else -1] != sum(places):
            raise InputError(f"movable {name}: {framework} keeps it at its end; plan without it in movable")


def _mindformers(launch: Launch) -> str:
    """The sections of a MindFormers YAML that hold the plan."""
    _at_the_ends(launch, "MindFormers")
    row = launch.parallel
    chunks, stages = len(launch.layers), len(launch.layers[0])
    share = launch.total // (chunks * stages)
    offset = [[count - share for count in counts] for counts in launch.layers]
    lists = write_lists({name: tuple(map(tuple, table)) for name, table in launch.recompute.items()})
    scheduler = {
        "1f1b": "1f1b",
        "interleaved": "1f1b",
        "interleaved-less-memory": "1f1b",
        "gpipe": "gpipe",
        "seq1f1b": "seqpipe",
        "zb-v": "zero_bubble_v",
    }.get(launch.schedule)
    if scheduler is None:
        raise InputError(f"schedule {launch.schedule}: MindFormers runs gpipe, 1f1b, seqpipe and zero_bubble_v")
    pipeline = {"pipeline_interleave": chunks > 1, "pipeline_scheduler": scheduler}
    if launch.schedule == "interleaved-less-memory":
        pipeline["pipeline_less_memory"] = True
    flat = chunks == 1
    document = {
        "runner_config": {"batch_size": row.mbs},
        "parallel": {
            "enable_parallel_optimizer": bool(row.zero_stage),
            "parallel_optimizer_config": {"optimizer_weight_shard_size": row.op},
            "pipeline_config": pipeline,
        },
        "parallel_config": {
            "data_parallel": row.dp,
            "model_parallel": row.tp,
            "context_parallel": row.cp,
            "expert_parallel": row.ep,
            "pipeline_stage": row.pp,
            "use_seq_parallel": bool(row.sp),
            "micro_batch_num": row.mb,
        },
        "recompute_config": {name: table[0] if flat else table for name, table in lists.items()},
        "model": {"model_config": {"offset": offset[0] if flat else offset, "pp_interleave_num": chunks}},
    }
    return yaml.safe_dump(document, default_flow_style=None, sort_keys=False)


def _torchtitan(launch: Launch) -> str:
    """The sections of a TorchTitan job TOML that hold the plan."""
    _at_the_ends(launch, "TorchTitan")
    row, training = launch.parallel, launch.training
    schedules = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zb-v": "ZBVZeroBubble"}
    if launch.schedule not in schedules:
        raise InputError(f"schedule {launch.schedule}: TorchTitan runs {', '.join(schedules)}")
    used, modes = launch.recomputes or {"none"}, {"none": "none", "full": "full", "select": "selective"}
    if len(used) > 1 or not used <= modes.keys():
        raise InputError(
            f"recompute {', '.join(sorted(used))}: TorchTitan has none, selective or full for all layers;"
            " plan with framework: torchtitan, or export to mindformers"
        )
    shard = min(row.dp, row.op) if row.zero_stage == 3 else 1
    lines = [
        "[training]",
        f"local_batch_size = {row.mbs * row.mb}",
        f"global_batch_size = {training.global_batch}",
        f"seq_len = {training.sequence_length}",
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {row.dp // shard}",
        f"data_parallel_shard_degree = {shard}",
        f"tensor_parallel_degree = {row.tp}",
        f"context_parallel_degree = {row.cp}",
        f"expert_parallel_degree = {row.ep}",
        f"pipeline_parallel_degree = {row.pp}",
    ]
    if row.pp > 1:
        lines += [
            f'pipeline_parallel_schedule = "{schedules[launch.schedule]}"',
            f"pipeline_parallel_microbatch_size = {row.mbs}",
            f"module_fqns_per_model_part = {_modules(launch)}",
        ]
    lines += ["", "[activation_checkpoint]", f'mode = "{modes[used.pop()]}"']
    return "\n".join(lines) + "\n"


def _modules(launch: Launch) -> str:
    """Modules of every chunk in model order."""
    parts, first = [], 0
    flat = launch.in_model_order(launch.layers)
    for i, count in enumerate(flat):
        names = [f"layers.{k}" for k in range(first, first + count)]
        first += count
        names = (["tok_embeddings"] if i == 0 else []) + names + (["norm", "output"] if i == len(flat) - 1 else [])
        parts.append("[" + ", ".join(f'"{name}"' for name in names) + "]")
    return "[" + ", ".join(parts) + "]"


_WRITERS: Mapping[str, Callable[[Launch], str]] = {
    "megatron": _megatron,
    "mindspeed": _mindspeed,
    "mindformers": _mindformers,
    "hyperparallel": _mindformers,
    "torchtitan": _torchtitan,
}
