"""The kernel is launched, on the stand-in for a GPU of test_cuda_path.py."""

from tests.training import test_cuda_path
from tests.training.test_cuda_path import stand_in, train  # noqa: F401

pytestmark = test_cuda_path.pytestmark


def test_the_kernel_is_launched(train):  # noqa: F811
    assert "cast_and_transpose" in train("candidate_fast_tensorwise")[1]
