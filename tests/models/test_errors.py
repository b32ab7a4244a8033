"""Commands that messages print."""

import re
import sys
from pathlib import Path

from models import errors
from tests.processes import ROOT


def test_a_printed_command_names_a_python_that_is_there(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python3")
    for environment, python in (
        (sys.prefix, ".venv/bin/python"),
        (tmp_path / "elsewhere", "'/opt/my python/bin/python3'"),
        (tmp_path / "nowhere", "'/opt/my python/bin/python3'"),
    ):
        monkeypatch.setattr(errors, "VENV_FOLDER", Path(environment))
        assert errors.name_python() == python


def test_no_message_names_an_environment_by_itself():
    """Except for what is typed at home, after a job."""
    folders = ("analysis", "experiments", "extensions", "models")
    files = [file for folder in folders for file in ROOT.glob(f"{folder}/**/*.py")]
    naming_files = set()
    for file in files:
        path = file.relative_to(ROOT)
        if "tests" not in path.parts and re.search(r"[\"` ]\.venv/bin/", file.read_text()):
            naming_files.add(str(path))
    assert naming_files == {"experiments/study.py", "models/errors.py"}
