"""Tandem's models in plain PyTorch, to compare against.

Responsible for: the same mathematics and the same parameter names as Tandem's models, and the exchange of
parameters as named NumPy arrays. Works with PyTorch 1.13 and later, in float32 and float64.

Conventions shared with Tandem:
  * Fused projections stack their rows: qkv is [(H + 2 KV) * D, C] (q, then k, then v), gate_up is [2F, C]. D is C / H, or
    `head_width`.
  * Query head h reads key/value head h // (H / KV).
  * Convolution weights in files are [C_out, KH, KW, C_in]; PyTorch's are [C_out, C_in, KH, KW].
  * Images are flattened in the order H, W, C, because that is how Tandem lays activations out.
  * The parameter-free shortcut of a ResNet keeps the input channels first and appends the zero channels.
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from muon import Muon

HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
HAS_GROUPS = HAS_SDPA and "enable_gqa" in (F.scaled_dot_product_attention.__doc__ or "")


def normal(shape, std):
    return nn.Parameter(torch.randn(*shape) * std)


class Linear(nn.Module):
    def __init__(self, inputs, outputs, std, bias):
        super().__init__()
        self.weight = normal((outputs, inputs), std)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, 1e-5)


class RmsNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + 1e-5) * gain. Zhang and Sennrich 2019."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain


def seen_keys(length, positions, window, device):
    """bool [B or 1, 1, T, T]: whether a query sees a key; None where it sees all up to itself. positions [B, T] or None: of tokens
    in their documents. window: the keys that a query sees at most; 0: all."""
    if positions is None and not window:
        return None
    key = torch.arange(length, device=device)
    before = (key[None] if positions is None else positions).clamp(max=(window or length) - 1)
    return ((key <= key[:, None]) & (key >= key[:, None] - before[:, :, None]))[:, None]


def causal_attention(q, k, v, seen=None):
    """q [B, H, T, D], k and v [B, KV, T, D] -> [B, H, T, D]. `seen`: of seen_keys."""
    if seen is not None and HAS_SDPA:
        k, v = (p.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for p in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    if k.shape[1] != q.shape[1]:
        if HAS_GROUPS:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        k, v = (p.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for p in (k, v))
    if HAS_SDPA:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    length = q.shape[-2]
    if seen is None:
        seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
    return torch.softmax(scores.masked_fill(seen.logical_not(), float("-inf")), dim=-1) @ v


def rotations(length, half, base=10000.0):
    """Cosines and sines of RoPE, f64 [T, D/2]. Su et al. 2021."""
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    return angle.cos(), angle.sin()


def rotate(x, rope):
    """RoPE on x [B, H, T, D] by angles [T, D/2] or [B, 1, T, D/2]; element i is paired with element i + D/2 (the NeoX convention)."""
    cos, sin = (part.to(x.dtype) for part in rope)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class HeadNorms(nn.Module):
    """RMSNorm of each head of queries and keys. The gains of queries, then those of keys."""

    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2 * dim))

    def forward(self, *queries_and_keys):
        return [x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain
                for x, gain in zip(queries_and_keys, self.gain.chunk(2))]


def head_width(config):
    return config.get("head_width") or config["width"] // config["heads"]


class Attention(nn.Module):
    def __init__(self, config, kv_heads, is_biased):
        super().__init__()
        width, self.dim = config["width"], head_width(config)
        self.sizes = [config["heads"] * self.dim, kv_heads * self.dim, kv_heads * self.dim]
        is_biased = is_biased or config.get("attention_bias", False)
        self.qkv = Linear(width, sum(self.sizes), 0.02, is_biased or config.get("qkv_bias", False))
        self.qk_norm = HeadNorms(self.dim) if config.get("qk_norm") else None
        self.proj = Linear(self.sizes[0], width, 0.02 / math.sqrt(2 * config["layers"]), is_biased)

    def forward(self, x, rope=None, seen=None):
        batch, length, _ = x.shape
        parts = self.qkv(x).split(self.sizes, dim=-1)
        q, k, v = (p.view(batch, length, -1, self.dim).transpose(1, 2) for p in parts)
        if self.qk_norm:
            q, k = self.qk_norm(q, k)
        if rope:
            q, k = rotate(q, rope), rotate(k, rope)
        y = causal_attention(q, k, v, seen)
        return self.proj(y.transpose(1, 2).reshape(batch, length, -1))


class GptMlp(nn.Module):
    def __init__(self, width, ffn_width, layers):
        super().__init__()
        self.fc = Linear(width, ffn_width, 0.02, bias=True)
        self.proj = Linear(ffn_width, width, 0.02 / math.sqrt(2 * layers), bias=True)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))


class GptBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, layers = config["width"], config["layers"]
        self.ln_1 = LayerNorm(width)
        self.attn = Attention(config, config["heads"], is_biased=True)
        self.ln_2 = LayerNorm(width)
        self.mlp = GptMlp(width, config.get("ffn_width") or 4 * width, layers)

    def forward(self, x, seen):
        x = x + self.attn(self.ln_1(x), seen=seen)
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks, tied head."""

    def __init__(self, config):
        super().__init__()
        self.wte = normal((config["vocab"], config["width"]), 0.02)
        self.wpe = normal((config["context"], config["width"]), 0.02)
        self.blocks = nn.ModuleList(GptBlock(config) for _ in range(config["layers"]))
        self.ln_f = LayerNorm(config["width"])
        if not config.get("tie_embeddings", True):
            self.head = Linear(config["width"], config["vocab"], 0.02, bias=False)

    def forward(self, tokens, positions=None):  # [B, T] -> [B, T, vocab]
        x = F.embedding(tokens, self.wte) + self.wpe[slice(tokens.shape[1]) if positions is None else positions]
        seen = seen_keys(tokens.shape[1], positions, 0, tokens.device)
        for block in self.blocks:
            x = block(x, seen)
        return F.linear(self.ln_f(x), self.head.weight if hasattr(self, "head") else self.wte)


class LlamaMlp(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up in one matrix. Shazeer 2020."""

    def __init__(self, width, ffn_width, layers):
        super().__init__()
        self.gate_up = Linear(width, 2 * ffn_width, 0.02, bias=False)
        self.down = Linear(ffn_width, width, 0.02 / math.sqrt(2 * layers), bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class LlamaBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["width"]
        self.norm_1 = RmsNorm(width)
        self.attn = Attention(config, config.get("kv_heads") or config["heads"], is_biased=False)
        self.norm_2 = RmsNorm(width)
        self.mlp = LlamaMlp(width, config["ffn_width"], config["layers"])

    def forward(self, x, rope, seen):
        x = x + self.attn(self.norm_1(x), rope, seen)
        return x + self.mlp(self.norm_2(x))


class Llama(nn.Module):
    """Llama (Touvron et al. 2023): RMSNorm, RoPE, SwiGLU, grouped key/value heads."""

    def __init__(self, config):
        super().__init__()
        self.window = config.get("sliding_window", 0)
        self.wte = normal((config["vocab"], config["width"]), 0.02)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config["layers"]))
        self.norm_f = RmsNorm(config["width"])
        if not config.get("tie_embeddings", False):
            self.head = Linear(config["width"], config["vocab"], 0.02, bias=False)
        for name, part in zip(("cos", "sin"), rotations(config["context"], head_width(config) // 2)):
            self.register_buffer(name, part, persistent=False)

    def forward(self, tokens, positions=None):  # [B, T] -> [B, T, vocab]
        x = F.embedding(tokens, self.wte)
        places = slice(tokens.shape[1]) if positions is None else positions[:, None]
        rope = [part[places] for part in (self.cos, self.sin)]
        seen = seen_keys(tokens.shape[1], positions, self.window, tokens.device)
        for block in self.blocks:
            x = block(x, rope, seen)
        return F.linear(self.norm_f(x), self.head.weight if hasattr(self, "head") else self.wte)


class Conv3x3(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 3, 3))
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return F.conv2d(x, self.weight, stride=self.stride, padding=1)


class BatchNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.gain, self.bias,
                            self.training, 0.1, 1e-5)


class ResnetBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs
        self.conv_1 = Conv3x3(inputs, outputs, stride)
        self.bn_1 = BatchNorm(outputs)
        self.conv_2 = Conv3x3(outputs, outputs, 1)
        self.bn_2 = BatchNorm(outputs)

    def forward(self, x):
        y = self.bn_2(self.conv_2(F.relu(self.bn_1(self.conv_1(x)))))
        if self.stride != 1 or self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return F.relu(y + x)


class ResnetStem(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = Conv3x3(inputs, outputs, 1)
        self.bn = BatchNorm(outputs)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Resnet(nn.Module):
    """The CIFAR ResNet of He et al. 2015, section 4.2: depth = 6n + 2, widths 16, 32, 64, shortcut option A."""

    def __init__(self, config):
        super().__init__()
        count = (config["depth"] - 2) // 6
        self.stem = ResnetStem(config["image"][0], 16)
        stages, inputs = [], 16
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            blocks = [ResnetBlock(inputs, width, stride)]
            blocks += [ResnetBlock(width, width, 1) for _ in range(count - 1)]
            stages.append(nn.Sequential(*blocks))
            inputs = width
        self.stages = nn.Sequential(*stages)
        self.head = Linear(64, config["classes"], 0.01, bias=True)

    def forward(self, images):  # [B, C, H, W] -> [B, classes]
        return self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))


class Mlp(nn.Module):
    """Flatten, `layers` hidden layers of `width` with ReLU, linear head."""

    def __init__(self, config):
        super().__init__()
        inputs = config["image"][0] * config["image"][1] * config["image"][2]
        sizes = [inputs] + [config["width"]] * config["layers"]
        self.layers = nn.ModuleList(Linear(a, b, math.sqrt(2.0 / a), bias=True)
                                    for a, b in zip(sizes, sizes[1:]))
        self.head = Linear(sizes[-1], config["classes"], math.sqrt(1.0 / sizes[-1]), bias=True)

    def forward(self, images):  # [B, C, H, W] -> [B, classes]
        x = images.permute(0, 2, 3, 1).flatten(1)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


MODELS = {"gpt": Gpt, "llama": Llama, "resnet": Resnet, "mlp": Mlp}


def build(config):
    """config: the keys of Tandem's [model] section, plus `vocab`, or `classes` and `image` [C, H, W]."""
    return MODELS[config["kind"]](config)


def loss_of(model, inputs, targets, *positions):
    """Mean cross entropy over all targets that are not -1. `positions`: as in the forward pass of a Gpt or a Llama."""
    logits = model(inputs, *positions)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1)


def to_tandem(array):
    """Converts PyTorch's convolution layout to that of Tandem's files; leaves other arrays unchanged."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if array.ndim == 4 else array


def from_tandem(array):
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if array.ndim == 4 else array


def parameter_arrays(model):
    """name -> float32 array in Tandem's layout."""
    return {name: to_tandem(p.detach().cpu().to(torch.float32).contiguous().numpy().copy())
            for name, p in model.named_parameters()}


def gradient_arrays(model, dtype=torch.float32):
    return {name: to_tandem(p.grad.detach().cpu().to(dtype).contiguous().numpy().copy())
            for name, p in model.named_parameters()}


def load_parameters(model, arrays):
    """Copies named arrays in Tandem's layout into `model`; a missing or extra name, or a wrong shape, is an error."""
    own = dict(model.named_parameters())
    if set(own) != set(arrays):
        raise ValueError(f"names differ: {sorted(set(own) ^ set(arrays))}")
    with torch.no_grad():
        for name, parameter in own.items():
            value = torch.from_numpy(from_tandem(np.asarray(arrays[name])))
            if value.shape != parameter.shape:
                raise ValueError(f"{name}: shape {tuple(value.shape)}, want {tuple(parameter.shape)}")
            parameter.copy_(value)


def build_optimizer(model, settings, **torch_options):
    """AdamW's weight decay is decoupled, SGD's is added to the gradient; both only for two or more dimensions."""
    def groups(parameters):
        return [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.get("weight_decay", 0.0)},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]

    def adamw(parameters):
        return torch.optim.AdamW(groups(parameters), lr=settings["lr"], betas=(settings["beta1"], settings["beta2"]),
                                 eps=settings["eps"], **torch_options)
    if settings["kind"] == "adamw":
        return adamw(list(model.parameters()))
    if settings["kind"] == "muon":
        return Muon(model, settings, adamw)
    return torch.optim.SGD(groups(list(model.parameters())), lr=settings["lr"], momentum=settings["momentum"],
                           nesterov=settings["nesterov"], **torch_options)
