"""Bad input: one clear line, exit status 2, no traceback; no answer: exit status 1."""

import json
from pathlib import Path

import pytest

from paraplan.cli import main
from paraplan.question.clusters import catalogue

DEVICES = Path(catalogue.__file__).parent / "devices"

GOOD = """\
model: llama3-8b
cluster: {device: h100-80gb-sxm, devices: 8}
training: {sequence_length: 4096, global_batch: 16}
search: {tp: auto, pp: 1}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "x.yaml:2: YAML syntax"),
        ("model: llama3-8b\n  bad: 1\n", "x.yaml:2: YAML syntax"),
        (GOOD + "serch: {}\n", "x.yaml:5: serch: unknown key; did you mean 'search'"),
        (GOOD.replace("tp: auto", "tq: 2"), "search.tq: unknown key"),
        (GOOD.replace("global_batch: 16", "global_batch: many"), "training.global_batch: 'many' found"),
        (GOOD.replace("global_batch: 16", "global_batch: 0"), "training.global_batch: 0 found, at least 1"),
        (GOOD.replace("global_batch: 16", "global_batch: 16, expert_imbalance: 0.5"), "training.expert_imbalance: 0.5"),
        (
            GOOD.replace("global_batch: 16", "global_batch: 16, expert_imbalance: .nan"),
            "training.expert_imbalance: nan",
        ),
        (GOOD.replace("global_batch: 16", f"global_batch: {10**400}"), "training.global_batch: inf found"),
        (GOOD.replace("sequence_length: 4096", f"sequence_length: {2**62}"), "at most 100,000,000"),
        (GOOD.replace("global_batch: 16", "global_batch: 16, tokens: .inf"), "training.tokens: inf found"),
        (
            GOOD.replace("global_batch: 16", "global_batch: 16, expert_imbalance: 1.0e+300"),
            "training.expert_imbalance: 1e+300",
        ),
        (
            GOOD.replace("global_batch: 16", "global_batch: 16, framework_options: {overlap_tensor: .nan}"),
            "framework_options: overlap_tensor: nan found",
        ),
        (
            GOOD.replace("global_batch: 16", "global_batch: 16, framework: nemo, framework_options: {release: x}"),
            "release: 'x' found, year and month",
        ),
        (GOOD.replace("tp: auto", "tp: 0"), "search.tp: 0 found"),
        (GOOD.replace("tp: auto", "tp: -2"), "search.tp: -2 found"),
        (GOOD.replace("tp: auto", "tp: []"), "search.tp: an empty list found"),
        (GOOD.replace("tp: auto", "tp: 1.5"), "search.tp: 1.5 found"),
        (GOOD.replace("h100-80gb-sxm", "h1000"), "cluster.device: 'h1000' found, a device file or one of a100"),
        (GOOD.replace("devices: 8", "devices: -8"), "cluster.devices: -8 found"),
        (GOOD.replace("llama3-8b", "llama9"), "model: 'llama9' found"),
        (GOOD.replace("sequence_length: 4096, ", ""), "training.sequence_length: missing"),
        (GOOD.replace("pp: 1", "pp: 1, constraints: ['tp = 3']"), "search.constraints: 'tp = 3' found"),
        ("- 1\n- 2\n", "list found, a mapping is needed"),
        ("", "nothing found, a mapping is needed"),
        (GOOD.replace("global_batch: 16", "global_batch: 16, precision: bf17"), "training.precision: 'bf17' found"),
        (GOOD + "model: mixtral-8x7b\n", "x.yaml:5: YAML syntax: key 'model' is given twice"),
        (
            GOOD.replace("devices: 8", "devices: 8, nic_gb_per_s_per_device: 900"),
            "GB/s per direction per device, not per node",
        ),
    ],
)
def test_wrong_config_is_one_line_with_the_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert message in refused(capsys, "nd", "-y", str(path))


BATCH, DEVICES = "global_batch: 16", "devices: 8"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (BATCH, "global_batch: true", "x.yaml:3: training.global_batch: True found, a whole number is needed"),
        (BATCH, "global_batch: 99999999999999", "training.global_batch: 99999999999999 found, at most 100,000,000"),
        ("4096", "true", "training.sequence_length: True found"),
        ("4096", "1000000000000", "training.sequence_length: 1000000000000 found, at most"),
        (BATCH, BATCH + ", gradient_bytes: -4", "training.gradient_bytes: -4 found, at least 1"),
        (BATCH, BATCH + ", tokens: .inf", "training.tokens: inf found, a finite number"),
        (BATCH, BATCH + ", tokens: true", "training.tokens: True found, a number"),
        (BATCH, BATCH + ", expert_imbalance: 1.0e+300", "training.expert_imbalance: 1e+300 found, at most"),
        (DEVICES, "devices: 1000000000000000003", "cluster.devices: 1000000000000000003 found"),
        ("tp: auto", "tp: {min: 1, max: 1000000000}", "search.tp.max: 1000000000 found"),
        ("tp: auto", "tp: {min: 1, max: 10000000}", "search.tp: 10,000,000 values found, at most 1,000,000"),
        ("tp: auto", "zero_stage: {min: 0, max: 9}", "search.zero_stage.max: 9 found"),
        ("tp: auto", "recompute: {min: 1, max: 9}", "search.recompute: {'min': 1, 'max': 9} found, one of none"),
        ("llama3-8b", "m" * 5000, "x.yaml:1: model: 'mmm"),
        ("llama3-8b", "m" * 5000 + ".yaml", "x.yaml:1: model: 'mmm"),
        ("h100-80gb-sxm", "m" * 5000 + ".yaml", "x.yaml:2: cluster.device: 'mmm"),
        ("{device: h100-80gb-sxm, devices: 8}", "c" * 5000, "x.yaml:2: cluster: 'ccc"),
        ("tp: auto", "recalibration: none.json", "x.yaml:4: search.recalibration: none.json: no such file"),
        (DEVICES, DEVICES + ", calibration: none.yaml", "x.yaml:2: cluster.calibration: 'none.yaml' found, a file"),
    ],
)
def test_value_out_of_range_is_one_short_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace(old, new))
    err = refused(capsys, "nd", "-y", str(path))
    assert message in err
    assert len(err) < 1000


def test_no_more_imbalance_than_experts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("llama3-8b", "mixtral-8x7b").replace(BATCH, BATCH + ", expert_imbalance: 9"))
    assert "training.expert_imbalance: 9.0 found, at most the 8 experts" in refused(capsys, "nd", "-y", str(path))


@pytest.mark.parametrize(
    "option",
    [
        "overlap_tensor: 5", "overlap_expert: .nan", "overlap_context: true", "fragmentation: -3",
        "fragmentation: .nan", "reserved_bytes: .nan", "pointwise_passes: .nan", "pointwise_passes: 0",
        "optimizer_bytes: -1", "parameter_bytes: 0", "gathers_per_layer: 0", "schedules: [foo]",
        "select_modules: [foo]", "expert_launches: .nan",
    ],
)  # fmt: skip
def test_impossible_framework_option_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace(BATCH, f"{BATCH}, framework_options: {{{option}}}"))
    assert f"x.yaml:3: training.framework_options: {option.split(':')[0]}" in refused(capsys, "nd", "-y", str(path))


DEVICE = """\
vendor: Mine
peak_flops: {bf16: 9.0e+14}
memory_bytes: 85899345920
memory_bandwidth: 3.0e+12
devices_per_node: 8
levels:
  - {name: inner, span: 8, bandwidth: 4.0e+11, latency: 1.0e-6}
  - {name: outer, span: 1048576, bandwidth: 5.0e+10, latency: 1.0e-5}
"""


@pytest.mark.parametrize(
    ("line", "field"),
    [
        *[
            (f"{key}: {value}", key)
            for key in ("power_watts", "price_per_hour", "host_bandwidth")
            for value in (-1, ".nan")
        ],
        ("sm_count: -1", "sm_count"),
        *[
            (f"efficiency: {{{key}: {value}}}", f"efficiency.{key}")
            for key in ("contention", "host_link", "matmul", "launch_seconds", "overhead_bytes", "fragmentation")
            for value in (-1, ".nan", ".inf")
        ],
        ("efficiency: {contention: 1.1}", "efficiency.contention"),
        ("efficiency: {matmull: 0.5}", "efficiency.matmull"),
        ("efficiency: {inter_link: 1.1}", "efficiency.inter_link"),
    ],
)
def test_impossible_device_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, field: str
) -> None:
    (tmp_path / "mine.yaml").write_text(DEVICE + line + "\n")
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("h100-80gb-sxm", "mine.yaml"))
    assert f"mine.yaml: {field}: " in refused(capsys, "nd", "-y", str(path))


@pytest.mark.parametrize("latency", [".nan", ".inf", "-1", "1.0e-6, latncy: 1.0e-6"])
def test_impossible_latency_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, latency: str) -> None:
    (tmp_path / "mine.yaml").write_text(DEVICE.replace("1.0e-6", latency))
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("h100-80gb-sxm", "mine.yaml"))
    assert "mine.yaml: levels.0.lat" in refused(capsys, "nd", "-y", str(path))


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ("efficiency: [1]", "efficiency: [1] found, a mapping"),
        ("efficiency:", "efficiency: missing, a mapping"),
        ("efficiency: abc", "efficiency: 'abc' found, a mapping"),
        ("efficiency: {launch_seconds: .nan}", "efficiency.launch_seconds: nan found, a finite number"),
        ("eficiency: {matmul: 0.5}", "eficiency: unknown key; did you mean 'efficiency'"),
        ("device: a2\nefficiency: {matmul: 0.5}", "device: 'a2' found, 'h100-80gb-sxm' is needed"),
    ],
)
def test_wrong_overlay_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, overlay: str, message: str
) -> None:
    (tmp_path / "o.yaml").write_text(overlay)
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace(DEVICES, DEVICES + ", calibration: o.yaml"))
    assert f"o.yaml: {message}" in refused(capsys, "nd", "-y", str(path))


def test_json_with_a_byte_order_mark_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    values = {"cluster": {"device": "h100", "devices": 8}, "training": {"sequence_length": 4096, "global_batch": 16}}
    path.write_text(json.dumps({"model": "llama3-8b"} | values), encoding="utf-8-sig")
    assert run(capsys, "nd", "-y", str(path))[0] == 0


def test_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "none.yaml: no such file" in refused(capsys, "nd", "-y", str(tmp_path / "none.yaml"))
    assert "is a folder" in refused(capsys, "nd", "-y", str(tmp_path))
    assert "layers: 'nope' found" in refused(capsys, "ppb", "-m", "nope", "-s", "2", "-mb", "4")


def test_unsupported_model_names_what_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"model_type": "rwkv"}))
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("llama3-8b", "m.json"))
    assert "'rwkv' is not supported; supported are bloom" in refused(capsys, "nd", "-y", str(path))


@pytest.mark.parametrize("value", [10**400, 2**62, float("nan"), "9" * 5000])
def test_number_beyond_any_model_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, value: object
) -> None:
    (tmp_path / "m.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 0}).replace("0", str(value).replace("nan", "NaN"))
    )
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("llama3-8b", "m.json"))
    assert "m.json: hidden_size: " in refused(capsys, "nd", "-y", str(path))


def test_batch_not_divisible_by_anything_tried_is_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("global_batch: 16", "global_batch: 7").replace("tp: auto", "tp: 1, cp: 1"))
    err = refused(capsys, "nd", "-y", str(path))
    assert "'batch over dp and mbs' removed" in err
    assert "the global batch 7 is dp·mbs·mb" in err


def test_nothing_fits_is_no_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("llama3-8b", "llama3-405b"))
    status, _, err = run(capsys, "nd", "-y", str(path))
    assert status == 1
    assert err.startswith(f"{path}: none of ")
    assert "GiB too much" in err
    assert "more devices" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("nd",),
        ("nonsense",),
        ("nd", "--nope"),
        ("ppb", "-m", "llama2_70b", "-s", "0", "-mb", "4"),
        ("ppb", "-m", "llama2_70b", "-s", "4", "-mb", "8", "-mem", "nan"),
        ("ppb", "-m", "llama2_70b", "-s", "4", "-mb", "8", "--schedule", "x"),
        ("ppb", "-m", "llama2_70b", "-s", "4", "-mb", "8", "--solver", "x"),
        ("estimate",),
        ("estimate", "--table", "missing.csv", "--output", "out.csv"),
        ("simulate", "missing.json"),
    ],
)
def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    refused(capsys, *arguments)


@pytest.mark.parametrize(
    "text", ["[1, 2]", "{}", '{"plans": []}', '{"plans": 3}', "{", '{"layers": {"layers_description": 3}, "stages": 2}']
)
def test_wrong_plan_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert "plan.json" in refused(capsys, "simulate", str(path))


def test_json_is_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    status, out, _ = run(capsys, "nd", "-y", str(path), "--json", "-t", "2")
    assert status == 0
    document = json.loads(out)
    assert len(document["ranked"]) == 2
    assert {"candidates", "fitting", "seconds", "ranked"} <= set(document)
    wanted = {"rank", "dp", "tp", "cp", "ep", "etp", "pp", "vpp", "mbs", "mb", "sp", "zero_stage", "recompute"}
    assert wanted | {"step_time_s", "tokens_per_s_per_device", "mfu", "peak_memory_gib"} <= set(document["ranked"][0])
    status, out, _ = run(
        capsys, "ppb", "-m", "demo_96", "-s", "4", "-mb", "8", "-mem", "400000", "-t", "5", "-O", "0", "--json"
    )
    assert status == 0
    assert json.loads(out)["status"] in ("optimal", "feasible")


def test_infeasible_balancing_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "ppb", "-m", "llama2_70b", "-s", "4", "-mb", "8", "-mem", "10", "-t", "5", "--json")
    assert status == 1
    assert json.loads(out)["status"] == "infeasible"
    assert "smallest limit that does" in err


def test_flags_of_the_predecessor_are_understood(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    ratios = tmp_path / "c.json"
    ratios.write_text('{"COMPUTE": 2.0}')
    plain = run(capsys, "nd", "-y", str(path), "-l", "MP", "DP", "--json")
    slower = run(capsys, "nd", "-y", str(path), "-l", "tp", "-c", str(ratios), "-f", "hyper_v2", "-A", "A2", "-d", "8", "-b", "32",  # noqa: E501
                 "-M", "60GB", "-mem", "4GB", "-t", "3", "-v", "0", "-swap_os", "-m", "llama2-7b", "-o", str(tmp_path / "o"), "--json")  # fmt: skip  # noqa: E501
    assert plain[0] == slower[0] == 0
    assert json.loads(slower[1])["ranked"][0]["swap_os"] == 1
    assert {path.name for path in (tmp_path / "o").iterdir()} == {"candidates.csv", "ranking.png", "pareto.png"}
    assert {row["pp"] for row in json.loads(plain[1])["ranked"]} == {1}
    assert "-M: '60' found, a size with its unit" in refused(capsys, "nd", "-y", str(path), "-M", "60")


def test_table_row_that_cannot_be_estimated_says_why_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table, output = tmp_path / "runs.csv", tmp_path / "out.csv"
    table.write_text(
        "id,model,hardware,num_devices,tp,pp,seq_len,global_batch\n"
        "a,llama3-8b,h100-80gb-sxm,8,2,1,4096,16\n"
        "b,llama3-8b,abacus,8,2,1,4096,16\n"
        "c,llama3-8b,h100-80gb-sxm,8,3,1,4096,16\n"
    )
    assert run(capsys, "estimate", "--table", str(table), "--output", str(output))[0] == 0
    lines = output.read_text().splitlines()
    assert lines[0] == "id,step_time_s,tokens_per_s_per_device,tflops_per_device,mfu,peak_memory_gib,fits,error"
    assert lines[1].startswith("a,") and lines[1].endswith(",yes,")
    assert "'abacus' found" in lines[2]
    assert "num_devices: 8 found" in lines[3]
