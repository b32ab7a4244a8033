"""The GPUs of runs, and the cores and memory near them."""

import os

import pytest

from experiments.jobs import process


@pytest.mark.parametrize(("visible", "gpus"), [("2,3", ["2", "3"]), ("", [None])])
def test_gpus_are_those_that_the_cluster_gave(visible, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert process.gpus() == gpus


# unknown; known; a GPU's own memory
@pytest.mark.parametrize(("nearest", "node"), [(-1, 2), (3, 3), (5, 2)])
def test_a_run_is_bound_to_the_cores_and_memory_of_its_gpu(nearest, node, tmp_path, monkeypatch):
    """On a Grace Hopper node: four memory nodes with cores, and the memory of four GPUs as nodes
    without. The kernel says which is nearest."""
    for number in range(8):
        folder = tmp_path / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text("0-71\n" if number < 4 else "\n")
    slot = tmp_path / "bus/pci/devices/0009:01:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text(f"{nearest}\n")
    tools = {"numactl": "exit 0", "nvidia-smi": "echo 00000009:01:00.0"}
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    bound = ["numactl", f"--cpunodebind={node}", f"--membind={node}"]
    assert process.binding("2", tmp_path) == bound
    assert process.binding(None, tmp_path) == []
    # as in a container whose memory may not be chosen
    (tmp_path / "numactl").write_text("#!/bin/sh\nexit 1\n")
    assert process.binding("2", tmp_path) == []
