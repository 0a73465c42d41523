"""Which tensors the kernel is given, what is made of its answer, and when it is not used at all."""

import pytest
import torch

from eagle_eye.training.checkpoint.cuda_sums import RowKernel, prove, row_kernel
from eagle_eye.training.checkpoint.memory_segment import ROW
from eagle_eye.training.checkpoint.row_sums import RowSums
from fakes.sum_rows import sum_rows

HERE = torch.device("cpu")


def test_the_sums_of_whole_rows_are_those_of_the_host() -> None:
    large, whole_numbers = torch.randn(40_000), torch.arange(70_000)
    kernel = RowKernel(HERE, sum_rows)
    kernel.queue([large, torch.ones(3), whole_numbers])
    found = kernel.fetch()
    for number, tensor in ((0, large), (2, whole_numbers)):
        size = tensor.nbytes
        host = RowSums(memoryview(bytearray(tensor.numpy().tobytes() + bytes(ROW))), 0, size)
        host.complete()
        assert found[number].sums.tolist() == host._sums[: size // ROW].tolist()
    assert found[1].sums.tolist() == []
    assert all(each.is_finite for each in found.values())
    assert kernel.fetch() == {}, "once"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_found_wherever_it_is(dtype: torch.dtype, value: float) -> None:
    tensor = torch.ones(40_001, dtype=dtype)
    kernel = RowKernel(HERE, sum_rows)
    for at in (0, 20_001, 40_000):
        odd = tensor.clone()
        odd[at] = value
        kernel.queue([tensor, odd])
        assert [each.is_finite for each in kernel.fetch().values()] == [True, False]


def test_what_the_kernel_cannot_read_is_left_to_the_host() -> None:
    kernel = RowKernel(HERE, sum_rows)
    wide = torch.randn(100, 100)
    kernel.queue([wide.T, torch.empty(0), wide.view(-1)[1:], wide])
    assert list(kernel.fetch()) == [3]
    kernel.queue([wide.T])
    assert kernel.fetch() == {}
    kernel.queue([torch.ones(8).to(torch.float8_e4m3fn)])
    assert not kernel.fetch()[0].is_finite, "it does not know that kind"


def test_a_kernel_is_used_only_if_it_sums_an_example_right() -> None:
    def wrong(**given: list[torch.Tensor]) -> None:
        sum_rows(**given)  # type: ignore[arg-type]
        given["args"][2][0] += 1

    def blind(**given: list[torch.Tensor]) -> None:
        sum_rows(**given)  # type: ignore[arg-type]
        given["args"][3].zero_()

    prove(RowKernel(HERE, sum_rows), HERE)
    for kernel in (wrong, blind):
        with pytest.raises(RuntimeError, match="an example was summed"):
            prove(RowKernel(HERE, kernel), HERE)


def test_without_a_kernel_the_host_makes_the_sums_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert row_kernel(torch.device("cuda", 0), lambda *_: sum_rows) is None, "there is no GPU here"
    assert "sums of checkpoints are made by the host" in caplog.text
