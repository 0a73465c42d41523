"""A real model, schedule and timers of Megatron-Core on the CPU, with watched timers: what is in the ring afterwards."""

import pytest

from fakes.framework_runs import UNWATCHED, FrameworkRun, phases_s, run_variants

SCRIPT = """
import contextlib, copy, dataclasses, json, os, pickle, time, warnings
os.environ["TORCHDYNAMO_DISABLE"] = "1"
warnings.simplefilter("ignore")
import torch

import torch.distributed as dist
import megatron.core.tensor_parallel.random
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.timers import Timers
from megatron.core.transformer.transformer_config import TransformerConfig
import eagle_eye
from eagle_eye.training.integrations.megatron import WatchedTimers

# what Megatron-Core asks of a GPU, whether it uses it or not
class Nothing:
    def __init__(self, *_, **__): ...
    def __getattr__(self, name):
        return lambda *_, **__: None
    def __enter__(self):
        return self
    def __exit__(self, *_):
        return False

class OnCpu(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
        return function(*args, **kwargs)

torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = lambda *_, **__: None
torch.cuda.Stream = torch.cuda.Event = Nothing
torch.cuda.current_stream = torch.cuda.stream = lambda *_, **__: Nothing()
torch.Tensor.cuda = lambda self, *_, **__: self
OnCpu().__enter__()
megatron.core.tensor_parallel.random.CudaRNGStatesTracker.fork = lambda self, *_, **__: contextlib.nullcontext()
LENGTH = 16

def main(what):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.manual_seed(1)
    config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True, attention_dropout=0.0, hidden_dropout=0.0,
                               gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False)
    timers = config.timers = WatchedTimers(Timers(log_level=2 if what == "all levels" else 0, log_option="max"), start=5)
    config = dataclasses.replace(config, timers=timers)
    assert copy.deepcopy(config).timers is timers
    config.finalize_model_grads_func = finalize_model_grads
    assert type(pickle.loads(pickle.dumps(timers))) is Timers
    model = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=LENGTH)
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=False, use_distributed_optimizer=False), model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    mask, positions = torch.tril(torch.ones(1, 1, LENGTH, LENGTH)) < 0.5, torch.arange(LENGTH).unsqueeze(0).expand(2, -1)
    losses = []

    def forward(batches, model):
        timers("batch-generator", log_level=2).start()
        batch = next(batches)
        timers("batch-generator").stop()
        if what == "raises" and len(losses) == 2:
            raise ValueError("shapes do not fit")
        output = model(batch[:, :-1], positions, mask, labels=batch[:, 1:])
        return output, lambda found: (found.float().mean(), {"loss": found.detach().float().mean()})

    def schedule(forward_only):
        return get_forward_backward_func()(forward_step_func=forward, data_iterator=batches, model=wrapped, num_microbatches=2, seq_length=LENGTH, micro_batch_size=2, forward_only=forward_only)

    batches = iter(lambda: torch.randint(0, 32, (2, LENGTH + 1)), None)
    timers("interval-time", log_level=0).start(barrier=True)
    for iteration in range(4):
        wrapped.zero_grad_buffer()
        found = schedule(False)
        timers("optimizer", log_level=1).start(barrier=False)
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        timers("optimizer").stop()
        losses.append(sum(float(each["loss"]) for each in found) / len(found))
        eagle_eye.monitor().log(loss=losses[-1], tokens=4 * LENGTH)
        if iteration == 1:
            timers("evaluate", log_level=0).start(barrier=True)
            schedule(True)
            time.sleep(0.02)
            timers("evaluate").stop()
            timers("save-checkpoint", log_level=0).start(barrier=True)
            time.sleep(0.02)
            timers("save-checkpoint").stop(barrier=True)
    timers("interval-time").elapsed(barrier=True)
    timers.finish()
    return losses
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FrameworkRun]:
    return run_variants(tmp_path_factory.mktemp("megatron"), SCRIPT, ("all levels", "no levels", "raises", UNWATCHED))


@pytest.mark.parametrize("variant", ["all levels", "no levels"])
def test_an_iteration_is_a_step_with_its_phases_whatever_timers_are_on(runs: dict[str, FrameworkRun], variant: str) -> None:
    trained = runs[variant]
    assert trained.said == runs[UNWATCHED].said
    assert trained.numbers() == [5, 6, 7, 8]
    assert trained.now is not None
    assert (trained.now.running, trained.now.faults) == (False, 0)
    for step in trained.steps:
        assert phases_s(step) == pytest.approx(step.values["step_s"], abs=1e-6)
        assert {"data_s", "forward_s", "backward_s", "communication_s", "optimizer_s"} <= step.values.keys()
        assert step.values["tokens"] == 64.0
    assert trained.values("loss") == pytest.approx(trained.said)


@pytest.mark.parametrize("variant", ["all levels", "no levels"])
def test_an_evaluation_and_a_checkpoint_are_phases_and_no_steps(runs: dict[str, FrameworkRun], variant: str) -> None:
    assert runs[variant].numbers("evaluation_s", 0.02) == [6]
    assert runs[variant].numbers("checkpoint_s", 0.02) == [6]


def test_an_exception_passes_through(runs: dict[str, FrameworkRun]) -> None:
    assert "ValueError: shapes do not fit" in runs["raises"].errors
    assert runs["raises"].numbers() == [5], "the second is not ended by another"
