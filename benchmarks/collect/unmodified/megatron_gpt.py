"""Model, schedule and gradient reduction of Megatron-Core, data-parallel."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.collect.unmodified import megatron_on_cpu
from benchmarks.collect.unmodified.steps_log import StepsLog

LENGTH, WORDS = 16, 64


def main() -> None:
    """Train until the process is ended."""
    warnings.simplefilter("ignore")
    megatron_on_cpu.install()
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=2, use_cpu_initialization=True, attention_dropout=0.0, hidden_dropout=0.0,
        gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, finalize_model_grads_func=finalize_model_grads,
    )  # fmt: skip
    model = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=WORDS, max_sequence_length=LENGTH)
    reduction = DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=False, use_distributed_optimizer=False)
    wrapped = DistributedDataParallel(config, reduction, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mask, positions = torch.tril(torch.ones(1, 1, LENGTH, LENGTH)) < 0.5, torch.arange(LENGTH).unsqueeze(0).expand(2, -1)
    batches = iter(lambda: torch.randint(0, WORDS, (2, LENGTH + 1)), None)

    def forward(batches: Iterator[torch.Tensor], model: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
        batch = next(batches)
        output = model(batch[:, :-1], positions, mask, labels=batch[:, 1:])
        return output, lambda found: (found.float().mean(), {"loss": found.detach().float().mean()})

    log = StepsLog()
    while True:
        wrapped.zero_grad_buffer()
        get_forward_backward_func()(
            forward_step_func=forward, data_iterator=batches, model=wrapped, num_microbatches=2, seq_length=LENGTH, micro_batch_size=2, forward_only=False
        )
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        log.step_done()


if __name__ == "__main__":
    main()
