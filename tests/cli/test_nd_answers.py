"""What ``paraplan nd`` and ``paraplan estimate`` say belongs together: ranking, explanation, sensitivity, options."""

import json
from pathlib import Path

import pytest

from paraplan.cli import main
from paraplan.cli.arguments import settings
from paraplan.foundation.errors import InputError
from paraplan.question.layouts import RECOMPUTE

BASE = """\
model: llama3-8b
cluster: {device: h100, devices: 8}
training: {sequence_length: 4096, global_batch: 16}
search: {}
"""
LISTS = BASE.replace("search: {}", "search: {tp: 2, recompute: none}") + "balance: {offset: [1, -1]}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(BASE)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(one) for one in arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(one) for one in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_recalibration_is_the_same_everywhere(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    ratios = tmp_path / "c.json"
    ratios.write_text('{"COMPUTE": 3.0}')
    answer = json.loads(run(capsys, "nd", "-y", config, "-c", ratios, "-t", "1", "--json", "--sensitivity"))
    best = answer["ranked"][0]
    assert answer["recalibration"] == {"COMPUTE": 3.0}
    # A tenth more or less of anything moves no step by more than the inverse of nine tenths.
    changes = [
        float(line["effect"].split()[3].rstrip("%")) for line in answer["sensitivity"] if "stays" in line["effect"]
    ]
    assert changes and all(abs(change) <= 11.2 for change in changes)
    assert "recalibrated: COMPUTE × 3" in run(capsys, "nd", "-y", config, "-c", ratios, "-t", "1")
    told = run(capsys, "nd", "-y", config, "-c", ratios, "--explain", "tp=2")
    assert f"against the winner, {best['step_time_s']:.4g} s" in told
    config.write_text(BASE.replace("search: {}", "search: {recalibration: {COMPUTE: 3}}"))
    fixed = [f"{name}={best[name]}" for name in ("dp", "tp", "cp", "pp", "mbs", "mb", "sp", "zero_stage", "recompute")]
    one = json.loads(run(capsys, "estimate", config, *(f"--set={text}" for text in fixed), "--json"))
    assert one["step_time_s"] == pytest.approx(best["step_time_s"])
    assert one["recalibration"] == {"COMPUTE": 3.0}


def test_sensitivity_keeps_the_ranking_where_less_memory_fits_nothing(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    told = run(capsys, "nd", "-y", config, "-M", "20.9GB", "-t", "1", "--sensitivity")
    assert "step s" in told
    assert "memory budget -10 %: nothing fits" in told


def test_sensitivity_of_played_lists_is_played(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    config.write_text(LISTS)
    answer = json.loads(run(capsys, "nd", "-y", config, "-mppb", "--sensitivity", "--json"))
    # The model's own time of the winner is 5 % above the played one, which no change of a tenth of a link explains.
    effects = {line["change"]: line["effect"] for line in answer["sensitivity"]}
    assert effects["network between nodes -10 %"] == "the winner stays, +0.0%"
    assert effects["links inside a node -10 %"] == "the winner stays, +0.4%"


def test_explanation_of_played_lists_says_what_is_played(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    config.write_text(LISTS)
    best = json.loads(run(capsys, "nd", "-y", config, "-mppb", "--json"))["ranked"][0]
    lines = run(capsys, "nd", "-y", config, "-mppb", "--explain", f"mbs={best['mbs']}").splitlines()
    assert lines[-2] == "the above is the model's, of an even split; played with the config's lists:"
    assert (
        lines[-1] == f"step {best['step_time_s']:.4g} s, +0.0% against the winner's {best['step_time_s']:.4g} s; fits"
    )


def test_explanation_of_another_shape_than_the_lists_is_the_models(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    config.write_text(LISTS)
    told = run(capsys, "nd", "-y", config, "-mppb", "--explain", "pp=4")
    assert told.endswith("the above is the model's; the config's lists, for pp=2 vpp=1, cannot be played with it\n")


def test_explanation_and_estimate_complete_a_layout_alike(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    config.write_text(BASE.replace("search: {}", "search: {tp: 4, mbs: 2}"))
    explained = run(capsys, "nd", "-y", config, "--explain", "sp=0").splitlines()[0]
    assert explained == run(capsys, "estimate", config, "--set", "sp=0").splitlines()[0]
    assert "dp=2 tp=4 " in explained and " mbs=2 " in explained
    # What is printed can be given back.
    assert run(capsys, "nd", "-y", config, "--explain", explained).splitlines()[0] == explained


def test_words_are_printed_for_what_has_words(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    config.write_text(BASE.replace("search: {}", "search: {recompute: [none, select]}"))
    asked = "pp=2,vpp=2,schedule=zb-v,recompute=full"
    told = run(capsys, "nd", "-y", config, "--explain", asked)
    assert "recompute=full" in told and "cp_kind=ring" in told
    assert "'schedule of the framework' (pp=2, schedule=zb-v): megatron runs 1f1b, interleaved" in told
    assert "search.recompute allows none, select, not full" in told
    assert json.loads(run(capsys, "nd", "-y", config, "--explain", asked, "--json"))["layout"]["schedule"] == "zb-v"
    err = refused(capsys, "estimate", config, *(f"--set={text}" for text in asked.split(",")))
    assert "schedule=zb-v breaks rule 'schedule of the framework'" in err
    assert "training.framework_options.schedules" in err
    config.write_text(BASE.replace("batch: 16", "batch: 16, framework_options: {schedules: [1f1b, interleaved, zb-v]}"))
    run(capsys, "estimate", config, *(f"--set={text}" for text in asked.split(",")))


@pytest.mark.parametrize("text", ["tp=[", "tp=*a", "tp=2024-13-45", "tp=!!x y", "tp={max: 8}", "tp=[1, 2]", "tp=", ","])
def test_setting_that_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--explain"):
        settings([text], "--explain")


def test_settings_are_read_as_they_are_printed() -> None:
    expected = {"tp": 8, "sp": 1, "recompute": RECOMPUTE.index("full"), "pp": 2}
    assert settings(["tp=8 sp=true,  recompute = full", "pp=2"]) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-M", "0GB"), "-M: '0GB' found, more than 0"),
        (("-M", "500GB"), "-M: cluster.memory_budget_gib: 465.661 found"),
        (("-mem", "200GB"), "-mem: search.reserve_gib: 186.265 found"),
        (("-A", "abacus"), "-A: cluster.device: 'abacus' found"),
        (("-f", "fastmoe"), "-f: training.framework: 'fastmoe' found"),
    ],
)
def test_wrong_option_is_blamed_not_the_config(
    capsys: pytest.CaptureFixture[str], config: Path, options: tuple[str, str], message: str
) -> None:
    assert refused(capsys, "nd", "-y", config, *options).startswith(message)


@pytest.mark.parametrize("option", ["-M", "-mem", "-c", "-o", "-s", "-m", "-f", "-A", "--explain"])
def test_option_without_a_value_is_refused(capsys: pytest.CaptureFixture[str], config: Path, option: str) -> None:
    assert f"{option}/" in (err := refused(capsys, "nd", "-y", config, option, "")) or f"{option}:" in err
    assert "'' found, a value is needed" in err


@pytest.mark.parametrize("level", ["-3", "9"])
def test_verbosity_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], config: Path, level: str) -> None:
    assert f"invalid choice: {level}" in refused(capsys, "nd", "-y", config, "-v", level)


def test_estimate_of_a_table_takes_no_layout_beside_it(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    table, output = tmp_path / "runs.csv", tmp_path / "out.csv"
    table.write_text("id,model,hardware,num_devices,seq_len,global_batch\na,llama3-8b,h100,8,4096,16\n")
    for more in ([config], ["--set", "tp=2"]):
        assert "--table found" in refused(capsys, "estimate", *more, "--table", table, "--output", output)
    assert "--output: without --table found" in refused(capsys, "estimate", config, "--output", output)
    assert not output.exists()


def test_wrong_file_of_an_option_is_blamed(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    ratios, section = tmp_path / "c.json", tmp_path / "s.yaml"
    ratios.write_text('{"COMPUTE": -2.0}')
    section.write_text("search: {tp: 0}\n")
    err = refused(capsys, "nd", "-y", config, "-c", ratios)
    assert err.startswith(f"{ratios}: search.recalibration.COMPUTE: -2.0 found")
    assert refused(capsys, "nd", "-y", config, "-s", section).startswith(f"{section}: search.tp: 0 found")


def test_ranking_is_printed_before_it_is_drawn(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paraplan.cli import nd

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(nd, "ranking_picture", interrupted)
    for more in ((), ("--json",)):
        assert main(["nd", "-y", str(config), "-t", "1", "-o", str(tmp_path / "o"), *more]) == 130
        captured = capsys.readouterr()
        assert captured.err == "stopped\n"
        assert "llama3-8b on 8" in captured.out if not more else json.loads(captured.out)["ranked"]
