"""Lines that training frameworks print, each with the values that are in it: written after the frameworks' own formats.

Values are in the units of `collectors.log.value_formats`. A NaN is written as such; `None` stands for a line that holds no training value.
"""

import math
from typing import NamedTuple

NAN, GIB = math.nan, 2.0**30
RED, GREEN, RESET = "\x1b[31m", "\x1b[38;2;0;180;90m", "\x1b[39m"


class Sample(NamedTuple):
    """One line."""

    framework: str
    line: str
    values: dict[str, float] | None


SAMPLES = (
    Sample(
        "Megatron-LM",
        " [2025-01-21 04:41:44.283] iteration        5/  500000 | consumed samples:         1280 | elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 412.3"
        " | learning rate: 1.200000E-06 | global batch size:   256 | lm loss: 1.081234E+01 | loss scale: 1.0 | grad norm: 12.345 | num zeros: 0 | number of skipped iterations:   0"
        " | number of nan iterations:   0 |",
        {"step": 5, "loss": 10.81234, "grad_norm": 12.345, "learning_rate": 1.2e-6, "iteration_s": 1.2345, "loss_scale": 1, "overflow_steps": 0},
    ),
    Sample(
        "Megatron-LM, fp16",
        " iteration        2/    1000 | consumed samples: 2048 | elapsed time per iteration (ms): 123896.3 | learning rate: 0.000E+00 | global batch size:  1024"
        " | loss scale: 2147483648.0 | number of skipped iterations:   1 | number of nan iterations:   0 |",
        {"step": 2, "learning_rate": 0, "iteration_s": 123.8963, "loss_scale": 2147483648, "overflow_steps": 1},
    ),
    Sample(
        "Megatron-DeepSpeed",
        "[default7]: iteration    12695/  115311 | consumed samples: 9841584 | elapsed time per iteration (s): 105.22 | learning rate: 5.969E-05 | global batch size:  2048"
        " | lm loss: 2.463556E+00 | grad norm: 0.174 | num zeros: 0.0 | number of skipped iterations:   0 | tokens per gpu per second (tgs): 311.2 | TFLOPs: 149.02 |",
        {"step": 12695, "loss": 2.463556, "grad_norm": 0.174, "learning_rate": 5.969e-5, "iteration_s": 105.22, "gpu_tokens_per_s": 311.2, "overflow_steps": 0},
    ),
    Sample("Megatron-LM, evaluation", " validation loss at iteration 45000 | lm loss value: 2.327091E+00 | lm loss PPL: 1.024808E+01 |", None),
    Sample(
        "nanotron",
        "08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 1 / 15 | consumed_tokens: 512 | elapsed_time_per_iteration_ms: 4.71K | tokens_per_sec: 870 | tokens_per_sec_per_gpu: 109"
        " | global_batch_size: 2 | lm_loss: 5.32 | lr: 0.00015 | model_tflops_per_gpu: 1.87e-05 | grad_norm: 2.96 | cuda_memory_allocated: 67.4M | cuda_max_memory_reserved: 520M",
        {"step": 1, "loss": 5.32, "grad_norm": 2.96, "learning_rate": 1.5e-4, "iteration_s": 4.71, "tokens_per_s": 870, "gpu_tokens_per_s": 109, "memory_bytes": 67.4e6},
    ),
    Sample(
        "torchtitan, in colours",
        f"[rank0]:[titan] 2025-03-03 11:06:02,437 - root - INFO - {RED}step: 10  {GREEN}loss:  7.1234  {RED}grad_norm:  4.0675  {GREEN}memory: 47.92GiB(50.40%)  {RED}tps: 4,230"
        f"  {GREEN}tflops: 244.97  {RED}mfu: 24.77%{RESET}",
        {"step": 10, "loss": 7.1234, "grad_norm": 4.0675, "memory_bytes": 47.92 * GIB, "gpu_tokens_per_s": 4230, "mfu_percent": 24.77},
    ),
    Sample(
        "torchtitan, older",
        "2024-07-01 10:00:01,200 - root - INFO - step:  1  loss: 12.2721  memory: 36.22GiB(38.13%)  wps: 1,024  mfu: 5.10%",
        {"step": 1, "loss": 12.2721, "memory_bytes": 36.22 * GIB, "gpu_tokens_per_s": 1024, "mfu_percent": 5.1},
    ),
    Sample(
        "NeMo 2",
        "Training epoch 0, iteration 10/999 | lr: 4.498e-06 | global_batch_size: 512 | global_step: 29 | reduced_train_loss: 11.03 | train_step_timing in s: 4.686 | consumed_samples: 10240 | val_loss: 2.861",
        {"step": 29, "loss": 11.03, "learning_rate": 4.498e-6, "iteration_s": 4.686},
    ),
    Sample(
        "NeMo, progress bar",
        "Epoch 0: :   0%|          | 5/500000 [00:34<951:18:35, v_num=, reduced_train_loss=10.90, global_step=4.000, consumed_samples=1280.0, train_step_timing in s=5.890, grad_norm=3.2]",
        {"step": 4, "loss": 10.9, "iteration_s": 5.89, "grad_norm": 3.2},
    ),
    Sample(
        "MLPerf logging",
        ':::MLLOG {"namespace": "", "time_ms": 1759943926359, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 2.0744, "metadata": {"lineno": 160, "samples_count": 80, "lr": 0.0005}}',
        {"loss": 2.0744, "learning_rate": 5e-4},
    ),
    Sample(
        "MLPerf logging, tracked_stats",
        ' 0: :::MLLOG {"namespace": "", "key": "tracked_stats", "value": {"train_loss": 2.3512}, "metadata": {"lineno": 273, "samples_count": 160, "lr": 0.00055, "step": 10}}',
        {"step": 10, "loss": 2.3512, "learning_rate": 5.5e-4},
    ),
    Sample(
        "fairseq",
        "2020-12-01 10:00:00 | INFO | train_inner | epoch 001:    100 / 7500 loss=12.345, nll_loss=11.9, ppl=3825, wps=23456, ups=1.25, wpb=18765, bsz=512, num_updates=100, lr=1.25e-05,"
        " gnorm=2.3, loss_scale=128, train_wall=83, gb_free=10.1, wall=90",
        {"step": 100, "loss": 12.345, "grad_norm": 2.3, "learning_rate": 1.25e-5, "iteration_s": 0.8, "tokens_per_s": 23456, "loss_scale": 128},
    ),
    Sample(
        "metaseq",
        '{"epoch": 1, "update": 0.1, "loss": "12.3", "ppl": "8", "wps": "23456.7", "ups": "1.25", "num_updates": "100", "lr": "1e-05", "gnorm": "2.3", "loss_scale": "128"}',
        {"step": 100, "loss": 12.3, "grad_norm": 2.3, "learning_rate": 1e-5, "iteration_s": 0.8, "tokens_per_s": 23456.7, "loss_scale": 128},
    ),
    Sample("Transformers", "{'loss': 2.0491, 'grad_norm': 1.3, 'learning_rate': 0.00019619, 'epoch': 0.28}", {"loss": 2.0491, "grad_norm": 1.3, "learning_rate": 1.9619e-4}),
    Sample("Transformers 5", "{'loss': '2.049', 'grad_norm': '1.2', 'learning_rate': '1.9e-05', 'epoch': '0.28'}", {"loss": 2.049, "grad_norm": 1.2, "learning_rate": 1.9e-5}),
    Sample("Transformers, NaN", "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.01}", {"loss": 0, "grad_norm": NAN, "learning_rate": 5e-5}),
    Sample("Transformers, evaluation", "{'eval_loss': 1.93, 'eval_runtime': 12.1, 'eval_samples_per_second': 82.6, 'epoch': 1.0}", None),
    Sample("Transformers, the end", "{'train_runtime': 3512.2, 'train_samples_per_second': 28.4, 'train_steps_per_second': 0.89, 'train_loss': 2.1, 'epoch': 3.0}", None),
    Sample(
        "axolotl",
        "{'loss': 1.2, 'grad_norm': 0.4, 'learning_rate': 2.6e-05, 'memory/max_active (GiB)': 14.5, 'tokens/train_per_sec_per_gpu': 812.4, 'epoch': 0.1}",
        {"loss": 1.2, "grad_norm": 0.4, "learning_rate": 2.6e-5, "memory_bytes": 14.5 * GIB, "gpu_tokens_per_s": 812.4},
    ),
    Sample("JSON lines", '{"step": 40, "loss": NaN, "lr": 0.0001, "grad_norm": Infinity}', {"step": 40, "loss": NAN, "learning_rate": 1e-4, "grad_norm": math.inf}),
    Sample("DeepSpeed, steps", "[2024-01-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=6, lr=[1e-05, 1e-05], mom=[(0.9, 0.95)]", {"step": 10, "overflow_total": 6, "learning_rate": 1e-5}),
    Sample(
        "DeepSpeed, speed",
        "[INFO] [timer.py:260:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.4, MemAllocated=12.3GB, MaxMemAllocated=20.1GB",
        {"step": 10, "memory_bytes": 12.3e9},
    ),
    Sample("DeepSpeed, pipeline", "steps: 10 loss: 2.3456 iter time (s): 1.234 samples/sec: 12.970", {"step": 10, "loss": 2.3456, "iteration_s": 1.234}),
    Sample("DeepSpeed, overflow", "[INFO] [loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768", {"loss_scale": 32768}),
    Sample("apex, overflow", "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0", {"loss_scale": 16384}),
    Sample("fairseq, overflow", "2020-12-01 10:00:00 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0", {"loss_scale": 64}),
    Sample("Composer, first line", "[epoch=1][batch=12/500]:", {"step": 12}),
    Sample("Composer, loss", "\t Train loss/train/total: 8.4213", {"loss": 8.4213}),
    Sample("Composer, norm", "\t Train l2_norm/grad/global: 1.7", {"grad_norm": 1.7}),
    Sample("Composer, speed", "\t Train throughput/tokens_per_sec: 20082.8418", {"tokens_per_s": 20082.8418}),
    Sample("Composer, MFU", "\t Train throughput/device/mfu: 0.31", {"mfu_percent": 31}),
    Sample("Composer, another speed", "\t Train throughput/samples_per_sec: 2.7330", None),
    Sample("OLMo, first line", "[2024-04-17 09:42:38] INFO     [olmo.train:816, rank=0] [step=1002/739328]", {"step": 1002}),
    Sample("OLMo, loss", "    train/CrossEntropyLoss=10.73", {"loss": 10.73}),
    Sample("OLMo, speed", "    throughput/device/tokens_per_second=45,538", {"gpu_tokens_per_s": 45538}),
    Sample("OLMo, memory", "    System/Peak GPU Memory (MB)=43,309", {"memory_bytes": 43309e6}),
    Sample("OLMo, evaluation", "    eval/c4_en-validation/CrossEntropyLoss=3.2", None),
    Sample("OLMo-core, first line", "2026-08-08 12:01:00 INFO [olmo_core.train.callbacks.console_logger:68] [step=1,100/2,000,epoch=0,eta=5h11m]", {"step": 1100}),
    Sample("OLMo-core, loss", "    train/CE loss=nan", {"loss": NAN}),
    Sample("OLMo-core, norm", "    optim/total grad norm=0.412", {"grad_norm": 0.412}),
    Sample("OLMo-core, speed", "    throughput/device/TPS=9,876", {"gpu_tokens_per_s": 9876}),
    Sample("levanter", "INFO Progress on:train 19.0it/70.0it rate:76.8s/it remaining:1:05:15 elapsed:31:40 postfix:loss=4.5", {"step": 19, "loss": 4.5, "iteration_s": 76.8}),
    Sample(
        "MaxText",
        "completed step: 10, seconds: 1.234, TFLOP/s/device: 123.4, Tokens/s/device: 1234.5, total_weights: 65536, loss: 10.9",
        {"step": 10, "loss": 10.9, "iteration_s": 1.234, "gpu_tokens_per_s": 1234.5},
    ),
    Sample("litgpt", "Epoch 1 | iter 100 step 25 | loss train: 1.234, val: n/a | iter time: 123.45 ms (step) remaining time: 0:12:34", {"step": 25, "loss": 1.234, "iteration_s": 0.12345}),
    Sample("torchtune, progress bar", "1|10|Loss: 1.2345678:  10%|█         | 10/100 [00:10<01:30,  1.02s/it]", {"step": 10, "loss": 1.2345678, "iteration_s": 1.02}),
    Sample(
        "torchtune, log file",
        "Step 10 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:1234.5 grad_norm:1.2 peak_memory_active:12.3 peak_memory_alloc:12.2",
        {"step": 10, "loss": 1.2345, "grad_norm": 1.2, "learning_rate": 2e-5, "gpu_tokens_per_s": 1234.5, "memory_bytes": 12.3 * GIB},
    ),
    Sample("nanoGPT", "iter 100: loss 4.1234, time 123.45ms, mfu 35.12%", {"step": 100, "loss": 4.1234, "iteration_s": 0.12345, "mfu_percent": 35.12}),
    Sample("nanoGPT, before it has an MFU", "iter 0: loss 10.9, time 2123.45ms, mfu -100.00%", {"step": 0, "loss": 10.9, "iteration_s": 2.12345}),
    Sample("nanoGPT, evaluation", "step 250: train loss 4.0, val loss 4.1", None),
    Sample("modded-nanogpt", "step:10/5100 train_loss:9.1234 train_time:1234ms step_avg:123.4ms", {"step": 10, "loss": 9.1234, "iteration_s": 0.1234}),
    Sample("modded-nanogpt, evaluation", "step:0/5100 val_loss:10.82 train_time:0ms step_avg:nanms", None),
    Sample(
        "llm.c",
        "step   10/19560 | loss 9.123456 (+1.2z)| norm 1.2345 (+0.1z)| lr 1.00e-04 | 123.45 ms | 35.1% bf16 MFU | 412345 tok/s",
        {"step": 10, "loss": 9.123456, "grad_norm": 1.2345, "learning_rate": 1e-4, "iteration_s": 0.12345, "mfu_percent": 35.1, "tokens_per_s": 412345},
    ),
    Sample(
        "build-nanogpt",
        "step    10 | loss: 9.123456 | lr 1.0e-04 | norm: 1.2345 | dt: 123.45ms | tok/sec: 12345.67",
        {"step": 10, "loss": 9.123456, "grad_norm": 1.2345, "learning_rate": 1e-4, "iteration_s": 0.12345, "tokens_per_s": 12345.67},
    ),
    Sample("Lightning", "Epoch 0:  42%|████▏     | 421/1000 [00:10<00:14, 41.20it/s, v_num=3, val_loss=2.10, train_loss=2.310]", {"loss": 2.31, "iteration_s": 1 / 41.2}),
    Sample("Lightning, slow", "Epoch 0:  42%|████▏     | 421/1000 [00:10<00:14,  2.50s/it, loss=nan, v_num=3]", {"loss": NAN, "iteration_s": 2.5}),
    Sample("Lightning, evaluation", "Validation DataLoader 0:  42%|████▏     | 421/1000 [00:10<00:14, 41.20it/s, loss=2.0]", None),
    Sample("a loop of one's own", "step 11, loss: 3.0366311073303223", {"step": 11, "loss": 3.0366311073303223}),
    Sample("a loop of one's own", "Step 100/1000 | Loss 2.3 | lr 1e-4 | 512 tok/s", {"step": 100, "loss": 2.3, "learning_rate": 1e-4, "tokens_per_s": 512}),
    Sample("a loop of one's own", "2026-01-02 10:00:00 INFO step=7 train_loss=2.5 grad_norm=0.9 time=120 ms", {"step": 7, "loss": 2.5, "grad_norm": 0.9, "iteration_s": 0.12}),
    Sample("a loop of one's own, a tensor", "Epoch 1 Iter 20: loss = tensor(2.25, device='cuda:0', grad_fn=<NllLossBackward0>)", {"step": 20, "loss": 2.25}),
    Sample("a loop of one's own, NaN", "[rank3]: step 3 loss -nan(ind) grad_norm inf", {"step": 3, "loss": NAN, "grad_norm": math.inf}),
    Sample("a loop of one's own, NaN of Windows", "step=4 loss=1.#QNAN", {"step": 4, "loss": NAN}),
)
HARMLESS = (
    "loss scale: 32768.0 at step 3",
    "  loss: cross_entropy",
    "max_steps=1000 loss_weight=2.3",
    "step 3: packet loss 0.2 % on eth0",
    "step 3 aux_loss 0.1 load_balancing_loss 1.2",
    "step 3 val_loss 2.1",
    "iteration 4: validation loss 2.4",
    "step 3 loss 1.081234E",
    "step 3 loss 2.34.56",
    "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00,  1.20it/s]",
    "wandb: train/loss ▁▂▃ step 100",
    "gpu-3:401:8846 [3] NCCL INFO Channel 00/08 : 3[3] -> 4[4] via P2P/CUMEM/read",
)
"""Lines that hold no training value, and look as if they did; torn numbers among them."""
