"""The container of a job: which definition file srun is given, and what the job file says of paths
that the container does not see. On a real Slurm: what a step in a container has."""

import os
import re
import subprocess

import pytest

from tests import processes
from tests.launch.jobs import Job, in_container, slurm, submit
from tests.processes import ROOT

STUDY, NODES = "launch/alps_fp8.sbatch", "extensions/sharded/alps_multinode.sbatch"
SHOW = "tests/launch/show.sh"
ANSWER = 'case $1 in --help) echo "  --environment=FILE";; *) echo "SRUN $*";; esac'


@pytest.fixture
def job(tmp_path, program, monkeypatch):
    """A job file in an allocation where srun only says what it would start; returns its end."""
    program("srun", ANSWER)
    for name in [name for name in os.environ if name.startswith(("SLURM", "EDF", "RUNS"))]:
        monkeypatch.delenv(name)
    for folder in ("scratch", "store", "edf"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("EDF_PATH", f"/nowhere:{tmp_path}/edf")

    def call(*words: str, file: str = STUDY, **variables: str) -> subprocess.CompletedProcess:
        environment = os.environ | variables
        return processes.run(["bash", file, *words], check=False, env=environment)

    return call


def srun(done: subprocess.CompletedProcess) -> str:
    """What srun was given, after a job that ended well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout[done.stdout.index("SRUN ") :]


def refusal(done: subprocess.CompletedProcess) -> str:
    """The sentence of a job that was refused before srun."""
    assert done.returncode == 2 and "SRUN" not in done.stdout, done.stdout + done.stderr
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("error: ")
    return sentence


# ---- which container ----


def test_the_container_is_a_path_or_a_name(job, tmp_path):
    assert f"--environment={ROOT}/launch/alps.toml " in srun(job("baseline"))
    (tmp_path / "edf/mine.toml").write_text('mounts = ["${PWD}"]\n')
    assert "--environment=mine " in srun(job("baseline", EDF="mine"))
    relative = os.path.relpath(tmp_path / "edf/mine.toml", ROOT)
    assert f"--environment={tmp_path}/edf/mine.toml " in srun(job("baseline", EDF=relative))
    assert "EDF=no/such.toml" in refusal(job("baseline", EDF="no/such.toml"))
    assert "EDF=such.toml" in refusal(job("baseline", EDF="such.toml"))
    assert "--environment=of_another " in srun(job("baseline", EDF="of_another"))


@pytest.mark.parametrize(
    ("option", "word"), [("--edf=FILE", "--edf=/"), ("--export=NAMES", "launch/step.sh")]
)
def test_the_option_is_the_one_that_srun_has(job, program, option, word):
    program("srun", f'case $1 in --help) echo "  {option}";; *) echo "SRUN $*";; esac')
    done = job("baseline")
    assert word in srun(done) and "--environment=" not in srun(done)
    assert ("no container" in done.stdout) == (option == "--export=NAMES")


def test_without_srun_a_sentence_names_the_command(job, tmp_path):
    """As in a shell inside the container."""
    (tmp_path / "srun").unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("setpriv", "bash", "basename", "grep"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    assert "experiments.study" in refusal(job("baseline", PATH=str(tools)))


# ---- what it sees ----

EDFS = {
    "one line": 'mounts = ["{store}:{store}", "${{PWD}}:${{PWD}}"]',
    "a place alone, with a slash": "mounts = ['{store}/',\n  '${{PWD}}/']",
    "flags and comments": 'mounts = [ # all ["of"] them\n"{store}:{store}:ro+private", # store\n'
    '# "/home:/home",\n"${{PWD}}:${{PWD}}" ]\n[env]\nA = "[]"',
    "a default": 'mounts = ["${{NONE:-{store}}}", "${{PWD}}"]',
    "a base": 'base_environment = ["above"]\nmounts = ["${{PWD}}"]',
    "a base that is a string": 'base_environment = "above"\nmounts = ["${{PWD}}"]',
}


@pytest.mark.parametrize("edf", EDFS)
def test_a_folder_that_is_mounted_is_taken(job, tmp_path, edf):
    store = tmp_path / "store"
    (tmp_path / "edf/above.toml").write_text(f'mounts = ["{store}:{store}"]\n')
    (tmp_path / "edf/mine.toml").write_text(EDFS[edf].format(store=store))
    key = f"training.dataset_path={store}"
    assert key in srun(job("baseline", key, EDF="mine"))
    srun(job("baseline", EDF="mine", RUNS=f"{store}/runs"))
    beside = tmp_path / "store2"
    beside.mkdir()
    assert str(beside) in refusal(job("baseline", f"training.dataset_path={beside}", EDF="mine"))


@pytest.mark.parametrize(
    "place", ["store", "scratch/link", "scratch/link/below", "scratch/../store"]
)
def test_a_path_that_is_not_mounted_is_refused_on_the_host(job, tmp_path, place):
    (tmp_path / "scratch/link").symlink_to(tmp_path / "store")
    (tmp_path / "store/below").mkdir()
    path = tmp_path / place
    assert f"data.cache_dir={path}" in refusal(job("baseline", f"data.cache_dir={path}"))
    assert "EDF=" in refusal(job("baseline", RUNS=f"{path}/runs"))
    assert "EDF=" in refusal(job("baseline", "--out", f"{path}/runs"))


def test_a_path_of_the_image_a_relative_one_and_other_values_are_no_matter(job, tmp_path):
    keys = ["data.cache_dir=.cache/data", "training.dataset_path=/workspace/of/the/image"]
    assert "launch" in srun(job("baseline", *keys, "model.flavor=launch"))
    srun(job("baseline", "training.dataset_path=/capstor/store/of/alps"))


def test_a_link_as_scratch_is_its_folder(job, tmp_path):
    (tmp_path / "short").symlink_to(tmp_path / "scratch")
    short = f"{tmp_path}/short"
    srun(job("baseline", f"data.cache_dir={short}", SCRATCH=short, RUNS=f"{short}/runs"))
    # the container has a folder of the link's name, and none of the folder's
    refusal(job("baseline", f"data.cache_dir={tmp_path}/scratch", SCRATCH=short))


def test_a_variable_that_the_definition_needs_is_named(job, monkeypatch):
    monkeypatch.delenv("SCRATCH")
    assert "${SCRATCH}" in refusal(job("baseline"))


def test_alps_files_mount_all_file_systems_of_projects():
    files = sorted(ROOT.glob("launch/*.toml"))
    assert [file.name for file in files] == ["alps.toml", "alps_extended.toml"]
    for file in files:
        text = file.read_text()
        assert all(f'"{place}:{place}"' in text for place in ("/capstor", "/iopsstor", "${PWD}"))


# ---- an allocation without a batch script ----


def test_a_study_has_a_folder_and_the_overlay_of_the_cluster(job, tmp_path):
    words = "experiments.study baseline --seeds 3"
    default = "--out runs/fp8-7 --overlay alps"
    assert f"{words} {default}\n" in srun(job("baseline", "--seeds", "3"))
    out = f"{tmp_path}/scratch/out"
    assert f"{words} --out={out} --overlay alps\n" in srun(job(*words.split()[1:], f"--out={out}"))
    assert f"{words} --overlay cpu --out runs/fp8-7\n" in srun(
        job(*words.split()[1:], "--overlay", "cpu")
    )
    (tmp_path / "scratch/study.yaml").touch()
    folder = f"{tmp_path}/scratch"
    assert f"experiments.study --seeds 5 {folder}\n" in srun(job("--seeds", "5", folder))


def test_an_allocation_without_slurms_other_variables(job):
    """salloc's shell has no SLURM_CPUS_PER_TASK."""
    assert "--cpus-per-task" not in srun(job("baseline"))
    assert "--cpus-per-task=288 " in srun(job("baseline", SLURM_JOB_CPUS_PER_NODE="288(x2)"))
    assert "--cpus-per-task=72 " in srun(job("baseline", SLURM_CPUS_PER_TASK="72"))
    assert "--overlap " in srun(job("baseline", SLURM_STEP_ID="0"))
    assert "sbatch --nodes=N" in refusal(job("baseline", file=NODES))


def test_a_login_node_that_cannot_check_names_the_job_that_can(job, monkeypatch):
    """Its Python is not the container's, for which .venv was made."""
    monkeypatch.delenv("SLURM_JOB_ID")
    done = job("--dry-run", "baseline", PYTHON="no-such-python")
    assert "sbatch --time=00:10:00 launch/alps_fp8.sbatch --dry-run" in refusal(done)


def test_a_system_whose_env_cannot_block_signals(program, monkeypatch):
    """coreutils 8.30, of RHEL 8 and Ubuntu 20.04."""
    program("env", "echo \"env: unrecognized option '$1'\" >&2; exit 125")
    monkeypatch.setenv("PYTHON", SHOW)
    monkeypatch.setenv("SCRATCH", "/tmp")
    done = processes.run(["launch/step.sh", "experiments.study", "baseline"])
    assert "started -m experiments.study baseline\n" in done.stdout and not done.stderr


@in_container
def test_a_step_has_what_the_definition_says(slurm_folder, monkeypatch):
    monkeypatch.setenv("PYTHON", SHOW)
    (slurm_folder / "host/capstor/store").mkdir(exist_ok=True)
    job = submit(slurm_folder, "--gpus-per-node=1", STUDY, "baseline")
    monkeypatch.setenv("EDF", "launch/alps_extended.toml")
    extended = submit(slurm_folder, "--gpus-per-node=1", STUDY, "baseline")
    assert job.end() == extended.end() == "COMPLETED 0:0, 0 restarts", job.log() + extended.log()
    log, scratch = job.log(), slurm_folder / "scratch"
    assert "started -m experiments.study baseline --out " in log
    assert "core dumps 0\n" in log and f"HF_HOME {scratch}/huggingface\n" in log
    assert "NCCL_NET_PLUGIN none\n" in log  # the image has one
    assert "/capstor: store\n" in log and f"{scratch}/../host: \n" in log  # not mounted
    assert "NCCL_NET_PLUGIN a plugin of the image\n" in extended.log()


@in_container
@pytest.mark.parametrize("file", [STUDY, NODES])
def test_a_submission_that_exports_little(slurm_folder, monkeypatch, file):
    monkeypatch.setenv("PYTHON", SHOW)
    options = ["--parsable", "--export=PYTHON,SCRATCH,RUNS", "--gpus-per-node=1", "--nodes=1"]
    number = slurm("sbatch", *options, f"--output={slurm_folder}/%j.log", file, "baseline")
    job = Job(number, slurm_folder)
    assert job.end() == "COMPLETED 0:0, 0 restarts", job.log()
    log = job.log()
    assert "started -m experiments" in log
    assert ("caches /tmp/inductor-" in log) == (file == NODES)


@in_container
@pytest.mark.parametrize("start", ["salloc", "srun"])
def test_a_shell_in_an_allocation(slurm_folder, monkeypatch, start):
    monkeypatch.setenv("PYTHON", SHOW)
    done = processes.run([start, "--gpus-per-node=2", "bash", STUDY, "baseline"])
    assert "started -m experiments.study" in done.stdout and "GPUs 0,1\n" in done.stdout


# ---- requeued only after progress ----


@in_container
@pytest.mark.parametrize("file", [STUDY, NODES])
def test_a_job_that_was_stopped_before_a_checkpoint_is_whole_ends(slurm_folder, monkeypatch, file):
    """Whether its folder is there or not, the last line tells what to do."""
    monkeypatch.setenv("PYTHON", SHOW)
    monkeypatch.setenv("ACTION", "exit 75")
    job = submit(slurm_folder, "--nodes=1", "--ntasks-per-node=1", file, "baseline")
    assert job.end() == "FAILED 75:0, 0 restarts", job.log()
    last = job.log().splitlines()[-1]
    assert re.search(rf"not requeued \(.*--time.*\)\. To resume: sbatch .*{file} baseline ", last)
