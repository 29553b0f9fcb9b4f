from __future__ import annotations

import re

import pytest

from openai_bls.commands.main import main, parse
from openai_bls.core import guide_names


@pytest.mark.parametrize("name", guide_names.SERVE)
def test_options_of_launch_triton_server(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is refused with what stands for it here, which there is."""
    with pytest.raises(SystemExit):
        main(["serve", f"{name}=1"])
    said = capsys.readouterr().err
    assert f"{name} is an option of another server; {guide_names.SERVE[name]}" in said
    serve = parse("serve", []).parser
    known = {option for action in serve._actions for option in action.option_strings}
    assert name not in known
    # What follows `--` is tritonserver's.
    assert set(re.findall(r"--[a-z][a-z0-9_-]*", guide_names.SERVE[name].partition("after --")[0])) <= known


def test_the_guides_way_to_write_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--http_port", "8100"])
    assert "--http_port is written --http-port here" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--no-such-thing"])
    assert "there is no option --no-such-thing" in capsys.readouterr().err
