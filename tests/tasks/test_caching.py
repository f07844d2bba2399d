from dataclasses import dataclass

import pytest

from paraplan.foundation.errors import InputError, NoAnswerError
from tasks.caching import CheckedJson, ContentAndCode, Result, refused, step


@step("test", run_name="test", modules=("paraplan.foundation.errors",))
def no_layout_fits() -> Result:
    raise NoAnswerError("no layout fits")


@step("test", run_name="test", modules=("paraplan.foundation.errors",))
def wrong_input() -> Result:
    raise InputError("x.yaml: tp: found 0")


@step("test", run_name="test", modules=("paraplan.foundation.errors",), isolated=True)
def crash() -> Result:
    raise RuntimeError("solver crashed")


def test_checked_json_gives_back_what_was_written() -> None:
    value = {"a": [1, 0.1, None, "ä"], "b": {"c": True}}
    assert CheckedJson().loads(CheckedJson().dumps(value)) == value


@pytest.mark.parametrize("keep", [0, 10, 64, 65, 80])
def test_checked_json_refuses_what_was_cut_short(keep: int) -> None:
    written = CheckedJson().dumps({"layouts": list(range(100))})
    with pytest.raises(ValueError, match="altered"):
        CheckedJson().loads(written[:keep])


def test_checked_json_refuses_an_altered_digit() -> None:
    written = CheckedJson().dumps({"step_time": 12.5})
    with pytest.raises(ValueError, match="altered"):
        CheckedJson().loads(written.replace(b"12.5", b"10.5"))


def test_checked_json_refuses_nan_so_that_it_never_reaches_a_file() -> None:
    with pytest.raises(ValueError, match="JSON"):
        CheckedJson().dumps({"gap": float("nan")})


@dataclass(frozen=True)
class Question:
    devices: int
    name: str = "a"


def key(policy: ContentAndCode, **inputs: object) -> str:
    return policy.compute_key(None, inputs, {})  # type: ignore[arg-type] # the task context plays no part


def test_key_changes_with_content_and_not_with_labels() -> None:
    policy = ContentAndCode(step="balance", modules=("paraplan.foundation.errors",), ignored=frozenset({"name"}))
    first = key(policy, problem=Question(8), name="x")
    assert first.startswith("balance/")
    assert key(policy, problem=Question(8), name="y") == first
    assert key(policy, problem=Question(16), name="x") != first


def test_key_changes_with_the_modules_that_compute_the_step() -> None:
    narrow = ContentAndCode(step="s", modules=("paraplan.foundation.errors",))
    wide = ContentAndCode(step="s", modules=("paraplan.foundation.errors", "paraplan.foundation.documents"))
    assert key(narrow, problem=1) != key(wide, problem=1)


def test_a_question_without_answer_is_a_result_with_its_exit_status() -> None:
    assert no_layout_fits.fn() == {"error": "no layout fits", "exit_status": 1}
    assert wrong_input.fn()["exit_status"] == 2
    assert refused(no_layout_fits.fn())
    assert not refused({"plans": []})


def test_a_crash_in_an_isolated_step_is_a_failed_state_with_the_reason() -> None:
    state = crash.fn()
    assert state.is_failed()  # type: ignore[attr-defined] # a state in place of a result is Prefect's way to fail
    assert state.message == "RuntimeError: solver crashed"  # type: ignore[attr-defined]
