#!/usr/bin/env python3
"""Compiled PyTorch beside `tandem_gpu_bench step` and `attention`: the same sizes on the same GPU. Needs PyTorch 2 only.

    torch_gpu.py step [--case gpt2_124m] [--batch N] [--vocab N] [--compile MODE]
    torch_gpu.py attention [--shape B,T,HEADS,KV_HEADS,WIDTH]

A step is the same model under torch.compile and bf16 autocast (`parity/reference.py`), with scaled_dot_product_attention, clipping
and fused AdamW; of a ResNet, images in channels_last, and fused SGD. --compile: torch.compile's mode, as reduce-overhead. Attention is scaled_dot_product_attention with each back end that takes the shape. 10 warm-up runs, 30 timed
ones, medians by events.
"""
import argparse
import contextlib
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "parity")]

import torch
import torch.nn.functional as F

import reference

GPT2 = {"kind": "gpt", "context": 1024}
# case: (samples, model), as in cases.cpp
CASES = {
    "gpt2_124m": (64, {**GPT2, "layers": 12, "heads": 12, "width": 768}),
    "gpt2_350m": (32, {**GPT2, "layers": 24, "heads": 16, "width": 1024}),
    "gpt2_774m": (16, {**GPT2, "layers": 36, "heads": 20, "width": 1280}),
    "gpt2_1.5b": (16, {**GPT2, "layers": 48, "heads": 25, "width": 1600}),
    "llama_1b": (8, {"kind": "llama", "context": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "width": 2048, "ffn_width": 8192,
                     "vocab": 128256}),
    "gpt_384": (8, {"kind": "gpt", "context": 256, "layers": 6, "heads": 6, "width": 384, "vocab": 65}),
    "resnet20": (128, {"kind": "resnet", "depth": 20, "classes": 10, "image": [3, 32, 32]}),
    "tiny_gpt": (2, {"kind": "gpt", "context": 8, "layers": 2, "heads": 2, "width": 16, "vocab": 40}),
    "tiny_llama": (2, {"kind": "llama", "context": 8, "layers": 2, "heads": 2, "kv_heads": 1, "width": 16, "ffn_width": 64, "vocab": 40}),
    "tiny_resnet": (2, {"kind": "resnet", "depth": 8, "classes": 10, "image": [3, 6, 6]}),
}
SHAPES = ["64,1024,12,12,64", "32,1024,16,16,64", "16,1024,20,20,64", "16,1024,25,25,64", "8,2048,32,8,64", "8,2048,16,16,128",
          "4,4096,16,4,128"]


def milliseconds(work, args):
    """Of one call: the median of args.runs."""
    for _ in range(args.warm_up):
        work()
    if args.device == "cpu":
        samples = []
        for _ in range(args.runs):
            start = time.perf_counter()
            work()
            samples.append(1e3 * (time.perf_counter() - start))
        return statistics.median(samples)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(args.runs + 1)]
    for event in events[:-1]:
        event.record()
        work()
    events[-1].record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(second) for first, second in zip(events, events[1:]))


def samples_of(config, batch, args):
    """Random inputs and targets."""
    if config["kind"] == "resnet":
        images = torch.randn(batch, *config["image"], device=args.device).contiguous(memory_format=torch.channels_last)
        return images, torch.randint(0, config["classes"], (batch,), device=args.device)
    return tuple(torch.randint(0, config["vocab"], (batch, config["context"]), device=args.device) for _ in range(2))


def step(args):
    case_batch, config = CASES[args.case]
    config = {"vocab": args.vocab, **config}
    batch = args.batch or case_batch
    torch.manual_seed(1)
    model = reference.build(config).to(args.device)
    fused = {"fused": True} if args.device == "cuda" else {}
    if config["kind"] == "resnet":
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1, **fused)
    else:
        decay = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-4,
                                      betas=(0.9, 0.95), **fused)
    # The loss, too: otherwise all logits are written and read again in f32.
    loss_of = torch.compile(reference.loss_of, **({"mode": args.mode_of_compiler} if args.mode_of_compiler else {}))
    inputs, targets = samples_of(config, batch, args)

    def work():
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = loss_of(model, inputs, targets)
        loss.backward()
        if config["kind"] != "resnet":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    begin = time.perf_counter()
    work()
    first_s = time.perf_counter() - begin
    ms = milliseconds(work, args)
    print(f"{args.case}, bf16, batch {batch}" + (f", compiled with {args.mode_of_compiler}" if args.mode_of_compiler else "") +
          f"\nmedian ms    {ms:.2f}\n{'images' if config['kind'] == 'resnet' else 'tokens'}/s     {1e3 * targets.numel() / ms:.0f}\n"
          f"first step, compiling, s {first_s:.0f}", flush=True)
    if args.device == "cuda":
        print(f"peak, GiB    {torch.cuda.max_memory_allocated() / 2**30:.2f}", flush=True)


def backends():
    """(name, context manager) of each back end of attention that this PyTorch knows."""
    yield "chosen by PyTorch", contextlib.nullcontext
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
        if hasattr(SDPBackend, name):
            yield name.lower(), lambda name=name: sdpa_kernel(getattr(SDPBackend, name))


def attention(args):
    print(f"{'B, T, heads, KV heads, width':32}{'back end':>22}{'forward us':>12}{'TFLOP/s':>10}{'backward us':>13}{'TFLOP/s':>10}")
    for shape in [args.shape] if args.shape else SHAPES:
        batch, length, heads, kv_heads, width = map(int, shape.split(","))
        q = torch.randn(batch, heads, length, width, device=args.device, dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(batch, kv_heads, length, width, device=args.device, dtype=torch.bfloat16, requires_grad=True)
                for _ in range(2))
        grouped = {"enable_gqa": True} if kv_heads != heads else {}
        product = length * length * batch * heads * width
        for name, chosen in backends():
            try:
                with chosen():
                    def forward():
                        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)

                    y = forward()
                    dy = torch.randn_like(y)
                    forward_ms = milliseconds(forward, args)
                    backward_ms = milliseconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), args)
            except RuntimeError as error:
                print(f"{shape.replace(',', ', '):32}{name:>22}  refused: {str(error).splitlines()[0][:60]}", flush=True)
                continue
            print(f"{shape.replace(',', ', '):32}{name:>22}{1e3 * forward_ms:12.1f}{2 * product / forward_ms / 1e9:10.1f}"
                  f"{1e3 * backward_ms:13.1f}{5 * product / backward_ms / 1e9:10.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["step", "attention"])
    parser.add_argument("--case", default="gpt2_124m", choices=CASES)
    parser.add_argument("--batch", type=int, default=0, help="sequences of a step; 0: as the case has")
    parser.add_argument("--vocab", type=int, default=50304)
    parser.add_argument("--compile", dest="mode_of_compiler", help="torch.compile's mode (its default)")
    parser.add_argument("--shape", help="B,T,HEADS,KV_HEADS,WIDTH")
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    if not hasattr(torch, "compile"):
        sys.exit(f"torch_gpu.py: PyTorch {torch.__version__} has no torch.compile; 2.0 or later is needed")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"torch_gpu.py: PyTorch {torch.__version__} finds no GPU")
    print(f"PyTorch {torch.__version__}" + (f", {torch.cuda.get_device_name()}" if args.device == "cuda" else ""), flush=True)
    torch.set_float32_matmul_precision("high")
    {"step": step, "attention": attention}[args.mode](args)


if __name__ == "__main__":
    main()
