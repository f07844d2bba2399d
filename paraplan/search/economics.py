"""What a step time means for a whole training: days, device-hours, energy, money."""

from typing import Any

from paraplan.question.problem import Problem

HOUR = 3600.0


def costs_of(problem: Problem, step_time: float) -> dict[str, Any]:
    """Time to train and what it takes; keys whose figures are unknown are left out.

    Energy is at the device's power limit, without hosts, network and cooling.
    """
    training, cluster = problem.training, problem.cluster
    rate = training.global_batch * training.sequence_length / step_time
    found: dict[str, Any] = {"tokens_per_s": rate}
    if training.tokens is None:
        return found
    seconds = training.tokens / rate
    device_hours = seconds * cluster.devices / HOUR
    found |= {"tokens": training.tokens, "days": seconds / 86400, "device_hours": device_hours}
    if cluster.device.power_watts:
        found["energy_mwh"] = device_hours * cluster.device.power_watts / 1e6
    if cluster.device.price_per_hour:
        found["cost_usd"] = device_hours * cluster.device.price_per_hour
    return found


def costs_text(costs: dict[str, Any]) -> list[str]:
    """The same for people."""
    if "days" not in costs:
        return [f"{costs['tokens_per_s']:,.0f} tokens/s"]
    text = f"{costs['tokens'] / 1e12:.4g} T tokens take {costs['days']:,.1f} days,"
    text += f" {costs['device_hours'] / 1e6:.3g} M device-hours"
    if "energy_mwh" in costs:
        text += f", {costs['energy_mwh']:,.0f} MWh at the devices' power limit"
    if "cost_usd" in costs:
        text += f", {costs['cost_usd'] / 1e6:.3g} M USD at the catalogue's price"
    return [text]
