"""torchtitan's checkpoints, with two things it lacks: a damaged one is found and passed over, and one can be asked for.

PyTorch writes a checkpoint's .metadata last and by renaming it, so a folder without one was never finished.
"""

import io
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.tools.logging import logger

ASIDE = "damaged_checkpoints"  # beside the checkpoints' folder
_READERS = 4  # threads; each holds one item, 1 GiB for the largest of 8 B parameters


class Checkpoints(CheckpointManager):
    """Checkpoints of one run. `asked` makes the next step boundary save, whatever the interval."""

    asked = False

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        return super()._should_save(curr_step, last_step) or (self.asked and self.enable)

    def save(self, curr_step: int, last_step: bool = False) -> None:
        """As torchtitan's, which leaves one too many after the last step."""
        super().save(curr_step, last_step)
        if last_step and self.enable:
            self._purge_stale_checkpoints()

    def close(self) -> None:
        """As torchtitan's, which does not wait for an asynchronous save that is under way."""
        if self.enable:
            self._async_wait()
        super().close()

    def load(self, step: int = -1) -> bool:
        """Load `step`, or the newest whole one (-1); False if there is none. All ranks call it.

        A damaged one is set aside with a warning. Raises RuntimeError if none could be read although they looked whole:
        then the weights are no longer those of step 0 either.
        """
        if not self.enable or step != -1:
            return super().load(step)
        failed = False
        while (newest := self._newest_whole()) != -1:
            try:
                return super().load(newest)
            except CheckpointException as error:  # derives from BaseException
                failed = True
                reason = next(iter(error.failures.values()))[0]
                self._on_first_rank(lambda: self._set_aside(newest, f"{type(reason).__name__}: {reason}"))  # noqa: B023
        if failed:
            raise RuntimeError(
                f"no checkpoint in {self.folder} could be read, so they were set aside in {ASIDE}: the same command "
                "again starts from the first step"
            )
        return super().load()

    def _newest_whole(self) -> int:
        """Step of the newest checkpoint that is whole, -1 if there is none; others are cleared away."""
        return self._on_first_rank(self._clear_away_damaged)

    def _clear_away_damaged(self) -> int:
        folder = Path(self.folder)
        for unfinished in folder.glob("step-*"):
            if not (unfinished / ".metadata").exists():
                logger.warning(f"{unfinished} was not written to its end: deleted")
                shutil.rmtree(unfinished)
        while (step := self._find_load_step()) != -1:
            if (problem := damage(folder / f"step-{step}")) is None:
                return step
            self._set_aside(step, problem)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # torchtitan takes an empty one for a run without its checkpoint.initial_load_path
        return -1

    def _set_aside(self, step: int, problem: str) -> None:
        checkpoint = Path(self._create_checkpoint_id(step))
        aside = Path(self.folder).parent / ASIDE
        aside.mkdir(exist_ok=True)
        place = aside / f"{checkpoint.name}-{len(list(aside.iterdir()))}"
        checkpoint.rename(place)
        logger.warning(f"{checkpoint} is damaged ({problem}): moved to {place}, going on from the one before")

    @staticmethod
    def _on_first_rank(do):
        """What `do` returns on the first rank, on every rank."""
        told = [do() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(told)
        return told[0]


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint's files, None if nothing: every item is read and its CRC-32 compared.

    torch.save writes each item as a zip archive with checksums, which torch.load does not look at.
    """
    try:
        items = FileSystemReader(checkpoint).read_metadata().storage_data.values()
        with ThreadPoolExecutor(_READERS) as readers:
            return next(filter(None, readers.map(lambda item: _damaged_item(checkpoint, item), items)), None)
    except Exception as error:  # whatever unpickling a damaged .metadata raises
        return f".metadata: {type(error).__name__}: {error}"


def _damaged_item(checkpoint: Path, item) -> str | None:
    try:
        with open(checkpoint / item.relative_path, "rb") as file:
            file.seek(item.offset)
            content = file.read(item.length)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            broken = archive.testzip()
    except Exception as error:  # whatever reading a damaged archive raises
        return f"{item.relative_path}: {error}"
    return broken and f"{item.relative_path}: wrong checksum"
