import importlib

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from flows.environment import PROJECT

DEPLOYMENTS = yaml.safe_load((PROJECT / "deployments" / "prefect.yaml").read_text())["deployments"]


def test_deployments_are_plan_on_demand_and_nightly_by_cron_one_at_a_time() -> None:
    by_name = {deployment["name"]: deployment for deployment in DEPLOYMENTS}
    assert set(by_name) == {"plan", "nightly"}
    assert "schedules" not in by_name["plan"]
    assert [schedule["cron"] for schedule in by_name["nightly"]["schedules"]] == ["0 4 * * *"]
    assert by_name["nightly"]["concurrency_limit"]["limit"] == 1
    assert all(schedule["slug"] for schedule in by_name["nightly"]["schedules"])


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_parameters_exist_in_the_flow_and_each_is_described(deployment: dict[str, object]) -> None:
    path, function = str(deployment["entrypoint"]).split(":")
    assert (PROJECT / path).is_file()
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), function)
    properties = parameter_schema(flow.fn).properties
    assert set(deployment["parameters"]) <= set(properties)  # type: ignore[call-overload]
    assert all(field.get("description") for field in properties.values())


def test_default_config_of_the_plan_deployment_is_in_the_project() -> None:
    plan = next(deployment for deployment in DEPLOYMENTS if deployment["name"] == "plan")
    assert (PROJECT / plan["parameters"]["config"]).is_file()
