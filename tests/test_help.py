"""Every module that is run says what it does, with an example and its exit codes, and does nothing
else then."""

import importlib
import sys

import pytest

from tests.processes import ROOT

COMMANDS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ("experiments", "analysis")
    for path in sorted((ROOT / room).rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


@pytest.mark.parametrize("module", COMMANDS)
def test_help(module, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", [module, "-h"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        importlib.import_module(module).main()
    said = " ".join(capsys.readouterr().out.split())
    assert not end.value.code and not any(tmp_path.iterdir())
    assert f"python -m {module}" in said and "xit code" in said
