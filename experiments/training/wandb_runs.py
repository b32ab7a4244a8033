"""Send a run's curves to Weights & Biases too, by torchtitan's key `metrics.enable_wandb`.

torchtitan calls the package wandb, and goes on without it where it fails. What a user can fix is
therefore checked before a run: the package, and a key. torchtitan reads the names of a run from
environment variables, which `name_wandb_run` sets unless the user has.
"""

import netrc
import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlparse

from experiments.records.run import STUDY_FILE
from models.errors import PYTHON, InputError

KEY = "metrics.enable_wandb"
DEFAULT_PROJECT = "fp8-recipes"
DEFAULT_SERVER = "https://api.wandb.ai"
MODES_WITHOUT_KEY = ("offline", "dryrun", "disabled")
KEY_VARIABLES = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def check_wandb(config) -> None:
    """Raise `InputError` if a recipe asks for Weights & Biases, and package or key are missing.

    wandb would ask for the key at the terminal, which a study's runs do not have.
    """
    if not config.metrics.enable_wandb:
        return
    if find_spec("wandb") is None:
        raise InputError(
            f"{KEY}=true needs the package wandb, which is not here: {PYTHON} -m pip install wandb"
        )
    if os.environ.get("WANDB_MODE") in MODES_WITHOUT_KEY:
        return
    if any(os.environ.get(name) for name in KEY_VARIABLES) or _has_netrc_entry():
        return
    raise InputError(
        f"{KEY}=true needs a key of Weights & Biases, which is neither in WANDB_API_KEY nor in "
        f"~/.netrc: {PYTHON} -m wandb login, or WANDB_MODE=offline to send the curves later"
    )


def _has_netrc_entry() -> bool:
    """Tell if `wandb login` has stored a key of the server for this user."""
    server = os.environ.get("WANDB_BASE_URL") or DEFAULT_SERVER
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        return netrc.netrc(file).authenticators(urlparse(server).hostname or server) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def name_wandb_run(recipe: str, seed: int, out: Path) -> None:
    """Set torchtitan's variables for the names of a run in the folder `out`.

    The run is STUDY/RECIPE/seedK in the group STUDY, without a study RECIPE/seedK in no group. What
    the user has set stays.
    """
    name = f"{recipe}/seed{seed}"
    os.environ.setdefault("WANDB_PROJECT", DEFAULT_PROJECT)
    study_folder = out.absolute().parent.parent  # STUDY of STUDY/RECIPE/seedK
    if (study_folder / STUDY_FILE).exists():
        os.environ.setdefault("WANDB_RUN_GROUP", study_folder.name)
        name = f"{study_folder.name}/{name}"
    os.environ.setdefault("WANDB_RUN_NAME", name)
