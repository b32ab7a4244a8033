"""What the published benchmark's figures say of one another."""

from analysis import b200_blog
from models.architectures import ARCHITECTURES
from models.flops import parameters


def test_efficiency_and_mfu_are_recomputed():
    scaling, mfu = b200_blog.scaling(), b200_blog.mfu()
    assert (
        scaling["efficiency"].tolist() == [0.714, 0.774]
        and scaling["of 4 x 1 GPU"].tolist() == [168000] * 2
    )
    assert mfu["of the dense peak"].tolist() == [0.169, 0.156, 0.096]
    assert (mfu["TFLOP/s"] / mfu["its peak"]).round(3).tolist() == mfu["printed"].tolist()


def test_tokens_are_more_flops_than_are_printed_and_attention_few_of_them():
    assert b200_blog.tflops()["TFLOP/s"].tolist() == [345, 531]
    assert b200_blog.lengths()[8192].tolist() == [0.77, 0.83, 0.25]
    for name, args in b200_blog.MODELS.items():
        assert parameters(args) == parameters(ARCHITECTURES["llama"].flavors[name])
