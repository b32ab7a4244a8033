"""One GPU for each run, and a process near its cores and memory."""

import os

import pytest

from experiments.jobs import ranks


@pytest.fixture
def sysfs(tmp_path):
    """A Grace Hopper node: four memory nodes with cores, and the memory of four GPUs as nodes
    without."""
    for node in range(8):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{72 * node}-{72 * node + 71}\n" if node < 4 else "\n")
    return tmp_path


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Writes a shell script that stands in for a program."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return write


@pytest.mark.parametrize(("visible", "gpus"), [("2,3", ["2", "3"]), ("", [None])])
def test_gpus_are_those_that_the_cluster_gave(visible, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert ranks.gpus() == gpus


@pytest.mark.parametrize(
    ("nearest", "node"), [(-1, 2), (1, 1), (5, 2)]
)  # unknown; known; a GPU's own memory
def test_a_run_is_bound_to_the_cores_and_memory_of_its_gpu(nearest, node, sysfs, tool, monkeypatch):
    monkeypatch.setattr(ranks, "_nearest", lambda gpu, root: nearest)
    tool("numactl", "exit 0")
    assert ranks.binding("2", 2, sysfs) == [
        "numactl",
        f"--cpunodebind={node}",
        f"--membind={node}",
    ]
    assert ranks.binding(None, 0, sysfs) == []
    tool("numactl", "exit 1")  # as in a container whose memory may not be chosen
    assert ranks.binding("2", 2, sysfs) == []


def test_the_kernels_memory_node_of_a_gpu(sysfs, tool):
    slot = sysfs / "bus/pci/devices/0009:01:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text("3\n")
    tool("nvidia-smi", "echo 00000009:01:00.0")
    assert ranks._nearest("1", sysfs) == 3
