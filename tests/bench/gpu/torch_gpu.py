#!/usr/bin/env python3
"""Compiled PyTorch beside `tandem_gpu_bench step` and `attention`: the same sizes on the same GPU. Needs PyTorch 2 only.

    torch_gpu.py step [--case gpt2_124m] [--batch N] [--vocab N]
    torch_gpu.py attention [--shape B,T,HEADS,KV_HEADS,WIDTH]

A step is GPT-2 (Radford et al. 2019) with scaled_dot_product_attention under torch.compile and bf16 autocast, clipping, and
fused AdamW. Attention is scaled_dot_product_attention with each back end that takes the shape. 10 warm-up runs, 30 timed
ones, medians by events.
"""
import argparse
import contextlib
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

# case: (sequences, layers, heads, width), of 1024 tokens, as in cases.cpp
CASES = {"gpt2_124m": (64, 12, 12, 768), "gpt2_350m": (32, 24, 16, 1024), "gpt2_774m": (16, 36, 20, 1280),
         "gpt2_1.5b": (16, 48, 25, 1600), "tiny_gpt": (2, 2, 2, 16)}
SHAPES = ["64,1024,12,12,64", "32,1024,16,16,64", "16,1024,20,20,64", "16,1024,25,25,64", "8,2048,32,8,64", "8,2048,16,16,128",
          "4,4096,16,4,128"]


class Block(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for linear in (self.qkv, self.fc):
            nn.init.normal_(linear.weight, std=0.02)
        for linear in (self.proj, self.mlp_proj):
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(layers, heads, width) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # tied
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


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


def step(args):
    case_batch, layers, heads, width = CASES[args.case]
    batch, context = args.batch or case_batch, args.context
    torch.manual_seed(1)
    model = Gpt(args.vocab, context, layers, heads, width).to(args.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    decay = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-4,
                                  betas=(0.9, 0.95), **({"fused": True} if args.device == "cuda" else {}))
    compiled = torch.compile(model)
    tokens = torch.randint(0, args.vocab, (batch, context), device=args.device)
    targets = torch.randint(0, args.vocab, (batch, context), device=args.device)

    def work():
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = compiled(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    begin = time.perf_counter()
    work()
    first_s = time.perf_counter() - begin
    ms = milliseconds(work, args)
    flops = batch * context * (6 * (parameters - context * width) + 6 * layers * width * context)  # half of the scores' square
    print(f"{args.case}, bf16, batch {batch} x {context}, vocabulary {args.vocab}\nmedian ms    {ms:.2f}\n"
          f"tokens/s     {1e3 * batch * context / ms:.0f}\nmodel TFLOP/s {flops / ms / 1e9:.4g}\n"
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
    parser.add_argument("--context", type=int, default=1024)
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
