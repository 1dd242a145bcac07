#!/usr/bin/env python3
"""Trains the CIFAR ResNet in PyTorch and prints its test accuracy, to compare Tandem's with.

Recipe: batch 128 (the last partial batch of an epoch is dropped), SGD momentum 0.9, learning rate 0.1 with 100
warm-up steps and cosine decay to 0.001 at the last step, weight decay 1e-4 added to the gradient of weights only,
random crop with four pixels of padding (zeros after normalisation) and horizontal flip.
"""
import argparse
import io
import math
import os
import sys
import tarfile
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def jpeg_files(data):
    """Yields (relative path, bytes) of each file in a folder or tar file that holds {train,test}/<class>/*.jpg."""
    if os.path.isdir(data):
        for folder, _, names in sorted(os.walk(data)):
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    yield os.path.relpath(path, data), file.read()
        return
    with tarfile.open(data) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, archive.extractfile(member).read()


def load_split(files, split):
    """uint8 images [N, 3, 32, 32] and int64 labels, in path order, classes numbered alphabetically."""
    from PIL import Image

    chosen = sorted((path, data) for path, data in files if path.split("/")[-3] == split)
    classes = sorted({path.split("/")[-2] for path, _ in chosen})
    images = np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for _, data in chosen])
    labels = np.array([classes.index(path.split("/")[-2]) for path, _ in chosen])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels


def learning_rate(step, steps, peak=0.1, least=0.001, warmup=100):
    if step < warmup:
        return peak * (step + 1) / warmup
    return least + (peak - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def augment(images, generator):
    """Random crop of the image padded by four zeros on each side, then a random horizontal flip; [N, 3, 32, 32]."""
    import torch

    count = images.shape[0]
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    top = torch.randint(0, 9, (count,), generator=generator).tolist()
    left = torch.randint(0, 9, (count,), generator=generator).tolist()
    flip = torch.randint(0, 2, (count,), generator=generator).tolist()
    out = torch.empty_like(images)
    for i in range(count):
        crop = padded[i, :, top[i] : top[i] + 32, left[i] : left[i] + 32]
        out[i] = crop.flip(-1) if flip[i] else crop
    return out


def evaluate(model, images, labels):
    import torch

    model.eval()
    with torch.no_grad():
        hits = sum((model(images[i : i + 500]).argmax(1) == labels[i : i + 500]).sum().item()
                   for i in range(0, len(labels), 500))
    model.train()
    return hits / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder or .tar.gz with {train,test}/<class>/*.jpg")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    import torch
    import reference

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    files = list(jpeg_files(args.data))
    (train_x, train_y), (test_x, test_y) = load_split(files, "train"), load_split(files, "test")
    del files
    mean = torch.tensor(train_x.mean(axis=(0, 2, 3)), dtype=torch.float32).view(1, 3, 1, 1)
    std = torch.tensor(train_x.std(axis=(0, 2, 3)), dtype=torch.float32).view(1, 3, 1, 1)

    def normalised(images):
        x = (torch.from_numpy(images).float() - mean) / std
        return x.contiguous(memory_format=torch.channels_last)

    test_x, train_y, test_y = normalised(test_x), torch.from_numpy(train_y), torch.from_numpy(test_y)
    config = {"kind": "resnet", "depth": args.depth, "classes": 10, "image": [3, 32, 32]}
    model = reference.build(config).to(memory_format=torch.channels_last)
    optimizer = reference.build_optimizer(
        model, {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 1e-4})
    per_epoch = len(train_y) // 128
    steps, step, start = per_epoch * args.epochs, 0, time.time()
    print(f"torch {torch.__version__}, ResNet-{args.depth}, seed {args.seed}, {steps} steps, "
          f"mean {mean.flatten().tolist()}, std {std.flatten().tolist()}", flush=True)
    for epoch in range(args.epochs):
        order = torch.randperm(len(train_y), generator=generator)
        for index in order[: per_epoch * 128].view(per_epoch, 128):
            images = augment(normalised(train_x[index.numpy()]), generator)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            loss = reference.loss_of(model, images, train_y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f} seconds {time.time() - start:.1f}", flush=True)
            step += 1
        print(f"epoch {epoch + 1} test_accuracy {evaluate(model, test_x, test_y):.4f} "
              f"seconds {time.time() - start:.1f}", flush=True)


if __name__ == "__main__":
    main()
