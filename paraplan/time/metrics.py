"""Rates that people compare: tokens per second per device, model FLOPs utilisation."""

from paraplan.foundation.arrays import Array
from paraplan.operators import parameters
from paraplan.question.problem import Problem


def tokens_per_second_per_device(problem: Problem, step_time: Array) -> Array:
    """Tokens of the global batch over step and devices."""
    training = problem.training
    return training.global_batch * training.sequence_length / (step_time * problem.cluster.devices)


def model_flops_per_token(problem: Problem) -> float:
    """FLOPs of forward and backward for one token: 6 per active weight, attention halved for the causal mask.

    PaLM (arXiv:2204.02311, appendix B) without its full attention square; recompute is not counted.
    """
    model, sequence = problem.model, problem.training.sequence_length
    weights = parameters.active(model) - parameters.embedding(model)
    if model.tied_embeddings:
        weights += model.vocab * model.hidden
    if model.mtp_layers:
        experts = model.experts
        idle = 0
        if experts is not None:
            idle = parameters.layer(model, "moe").experts * (experts.count - experts.topk) // experts.count
        weights += model.mtp_layers * (parameters.mtp_layer(model) - idle + model.vocab * model.hidden)
    value_dim = model.latent.value_head_dim if model.latent else model.head_dim
    attended = sequence / 2
    if model.sliding_window:
        window = min(attended, model.sliding_window)
        attended = (1 - model.sliding_share) * attended + model.sliding_share * window
    attention = 2 * attended * model.heads * (model.head_dim + value_dim) * (model.layers + model.mtp_layers)
    return 6.0 * weights + 3.0 * attention


def mfu(problem: Problem, step_time: Array) -> Array:
    """Model FLOPs over the 16-bit dense peak (the training precision's own where it is wider)."""
    peaks = problem.cluster.device.peak_flops
    peak = peaks.get("bf16", peaks.get("fp16", max(peaks.values())))
    training = problem.training
    flops = model_flops_per_token(problem) * training.global_batch * training.sequence_length
    return flops / (step_time * problem.cluster.devices * peak)
