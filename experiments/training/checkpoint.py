"""torchtitan's checkpoints of one run, and what torchtitan lacks.

A damaged or foreign checkpoint is found before it is loaded, one can be asked for at any step,
nothing but checkpoints is deleted, and a checkpoint that cannot be written or read is an ordinary
error.
"""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpoint import MODEL, CheckpointManager
from torchtitan.tools.logging import logger

from experiments.training import checkpoint_files
from models.errors import InputError

ASIDE = "damaged_checkpoints"  # beside the checkpoints' folder
IDENTITY = "train_state.identity"  # name of the item in a checkpoint


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. torch's own exception is none that `except
    Exception` catches."""


def _ordinary(task: str, error: CheckpointException) -> CheckpointError:
    reason = next(iter(error.failures.values()))[0]
    return CheckpointError(f"{task}: {type(reason).__name__}: {reason}")


class Checkpoints(CheckpointManager):
    """Checkpoints of one run.

    `asked` makes the next step boundary save, whatever the interval; `identity` is what a
    checkpoint must have been written with to be this run's, a JSON object of text and numbers.
    """

    asked = False
    identity: dict = {}  # noqa: RUF012  # set by the trainer

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        return super()._should_save(curr_step, last_step) or (self.asked and self.enable)

    def save(self, curr_step: int, last_step: bool = False) -> None:
        """As torchtitan's, which leaves one too many after the last step. Raises
        `CheckpointError`."""
        with self._saving():
            super().save(curr_step, last_step)
        if last_step and self.enable:
            self._purge_stale_checkpoints()

    @contextmanager
    def _saving(self):
        """What was written of a checkpoint that fails is deleted: the records of the run's end may
        need its room."""
        try:
            yield
        except CheckpointException as error:
            free = shutil.disk_usage(Path(self.folder).parent).free / 2**30
            if dist.get_rank() == 0:
                self._delete_unfinished()
            raise _ordinary(
                f"a checkpoint could not be saved, with {free:.1f} GiB free", error
            ) from error

    def _async_wait(self) -> None:
        try:
            super()._async_wait()
        except CheckpointException:
            self.save_future = None  # reported once
            raise

    def close(self) -> None:
        """As torchtitan's, which does not wait for an asynchronous save that is under way."""
        if self.enable:
            with self._saving():
                self._async_wait()
        super().close()

    def load(self, step: int = -1) -> bool:
        """Load `step`, or the newest whole one (-1); False if there is none. All ranks call it.

        A damaged one is set aside with a warning. Raises `InputError` for one of another run, and
        `CheckpointError` if none could be read although they looked whole: then the weights are no
        longer those of step 0 either.
        """
        if not self.enable or step != -1:
            return super().load(step)
        unreadable = False
        while (newest := self._on_first_rank(self._newest_whole)) != -1:
            try:
                return super().load(newest)
            except CheckpointError as error:
                unreadable, reason = True, str(error)
                self._on_first_rank(lambda: self._set_aside(newest, reason))  # noqa: B023
        if unreadable:
            raise CheckpointError(
                f"no checkpoint in {self.folder} could be read, so they were set aside in {ASIDE}: the same command "
                "again starts from the first step"
            )
        first = self.initial_load_path
        if first and (problem := self._on_first_rank(lambda: checkpoint_files.damage(Path(first)))):
            raise InputError(
                f"checkpoint.initial_load_path={first} is damaged ({problem}): give another checkpoint"
            )
        return super().load()

    def dcp_load(
        self, state_dict: dict, checkpoint_id: str, from_hf: bool, from_quantized: bool
    ) -> None:
        """As torchtitan's, of plain data only. Raises `CheckpointError`."""
        if from_hf:
            return super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
        try:
            checkpoint_files.load(state_dict, Path(checkpoint_id))
        except CheckpointException as error:
            raise _ordinary(f"{checkpoint_id} could not be read", error) from error
        if MODEL in self.states:
            self.states[MODEL].load_state_dict(state_dict)
        return None

    def _find_load_step(self, folder: str = "") -> int:
        """Step of the newest finished checkpoint, -1 if there is none; torchtitan's takes any name
        with a number."""
        return max(checkpoint_files.steps(Path(folder or self.folder)), default=-1)

    def _purge_stale_checkpoints(self) -> None:
        """Delete all but the last `keep_latest_k`; torchtitan's deletes whatever has `step-<int>`
        in its name."""
        if self.keep_latest_k > 0 and dist.get_rank() == 0:
            for step in checkpoint_files.steps(Path(self.folder))[: -self.keep_latest_k]:
                self.purge_queue.put(self._create_checkpoint_id(step))

    def _newest_whole(self) -> int:
        """Step of the newest checkpoint that is whole, -1 if there is none; others are cleared
        away.

        Raises `InputError` if it is another run's.
        """
        folder = Path(self.folder)
        if folder.is_symlink():
            raise InputError(
                f"{folder} is a link, and a run deletes nothing outside its directory: put a folder there"
            )
        self._delete_unfinished()
        while (step := self._find_load_step()) != -1:
            if (problem := checkpoint_files.damage(folder / f"step-{step}")) is None:
                self._check_identity(folder / f"step-{step}")
                return step
            self._set_aside(step, problem)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # torchtitan takes an empty one for a run without its checkpoint.initial_load_path
        return -1

    def _delete_unfinished(self) -> None:
        for step in checkpoint_files.steps(Path(self.folder), whole=False):
            logger.warning(
                f"{self._create_checkpoint_id(step)} was not written to its end: deleted"
            )
            shutil.rmtree(self._create_checkpoint_id(step))

    def _check_identity(self, checkpoint: Path) -> None:
        identity = json.loads(checkpoint_files.read_item(checkpoint, IDENTITY) or "{}")
        differing = [key for key, value in self.identity.items() if identity.get(key) != value]
        differences = [
            f"{key} ({identity.get(key)} there, {self.identity[key]} here)" for key in differing
        ]
        if differences:
            raise InputError(
                f"{checkpoint} is of another run, which differs in {', '.join(differences[:3])}: give the data and "
                f"keys that it was made with, move {checkpoint.parent} away, or choose another --out"
            )

    def _set_aside(self, step: int, problem: str) -> None:
        checkpoint = Path(self._create_checkpoint_id(step))
        aside = Path(self.folder).parent / ASIDE
        aside.mkdir(exist_ok=True)
        place = aside / f"{checkpoint.name}-{len(list(aside.iterdir()))}"
        checkpoint.rename(place)
        logger.warning(
            f"{checkpoint} is damaged ({problem}): moved to {place}, going on from the one before"
        )

    @staticmethod
    def _on_first_rank(do):
        """What `do` returns on the first rank, on every rank; an `InputError` that it raises
        too."""
        result = [None, None]
        if dist.get_rank() == 0:
            try:
                result[0] = do()
            except InputError as error:
                result[1] = str(error)
        dist.broadcast_object_list(result)
        if result[1]:
            raise InputError(result[1])
        return result[0]
