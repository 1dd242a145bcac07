#!/usr/bin/env python3
"""What `tandem estimate` says about runs that others have published, and how far off it is. Needs no GPU.

    published.py PATH_TO_TANDEM [--json FILE]

The programs were theirs, not Tandem: the error tells how well the model of a machine fits, not how fast Tandem is.
"""
import argparse
import json
import subprocess

# mosaicml/llm-foundry, scripts/train/benchmarking/README.md: MPT, bf16, FSDP FULL_SHARD, A100-40GB, 1,600 Gb/s of RoCE a node.
# Four times the network of a P4d, so four times the rate that was measured there. The same table has A100-80GB and H100-80GB.
MPT = {"source": "MosaicML MPT", "gpu": "a100-40", "vocab": 50368, "between_gb_s": 164, "dist.zero": 3, "model.kind": "gpt",
       "model.tie_embeddings": "true"}
MPT_1B = {**MPT, "model": "1B", "model.width": 2048, "model.layers": 24, "model.heads": 16}
MPT_3B = {**MPT, "model": "3B", "model.width": 2560, "model.layers": 32, "model.heads": 20}
MPT_7B = {**MPT, "model": "7B", "model.width": 4096, "model.layers": 32, "model.heads": 32, "train.recompute": "block"}
# InternLM/InternLM, doc/en/train_performance.md: bf16, A100-80GB, 4 x 100 Gb/s of RoCE a node, as a P4d; optimizer states
# sharded. Weak: 16,384 tokens a GPU and step. Strong: 4M tokens a step.
INTERN = {"source": "InternLM", "model": "7B", "gpu": "a100-80", "vocab": 103168, "dist.zero": 1, "model.kind": "llama",
          "model.width": 4096, "model.layers": 32, "model.heads": 32, "model.ffn_width": 11008, "model.tie_embeddings": "false"}
NODE, WORLD = {**INTERN, "dist.shard": "node"}, {**INTERN, "dist.shard": "world"}


def mpt(gpu, job, context):
    return {**job, "gpu": gpu, "context": context}


# (job, GPUs, samples in a micro-batch, micro-batches, tokens a second and GPU); of 2,048 tokens where a job has no context.
ROWS = [
    *((MPT_1B, *row) for row in [(8, 8, 8, 19271), (16, 8, 1, 19085), (32, 10, 1, 15555), (64, 10, 1, 19001), (128, 10, 1, 18647)]),
    *((MPT_3B, *row) for row in [(8, 5, 8, 10065), (16, 5, 1, 9750), (32, 6, 1, 9914), (64, 6, 1, 9736), (128, 6, 1, 9538)]),
    *((MPT_7B, *row) for row in [(8, 12, 4, 3679), (16, 16, 1, 3645), (32, 18, 1, 3725), (64, 18, 1, 3665), (128, 18, 1, 3623)]),
    *((NODE, gpus, 2, 4, rate) for gpus, rate in zip([8, 16, 32, 64, 128, 256, 512, 1024],
                                                     [4078, 3939, 3919, 3944, 3928, 3920, 3835, 3625])),
    *((WORLD, gpus, 2, 4, rate) for gpus, rate in zip([8, 16, 32, 64, 128, 256, 512, 1024],
                                                      [4062, 3842, 3752, 3690, 3571, 3209, 2861, 2271])),
    (NODE, 512, 2, 2, 3084), (NODE, 1024, 2, 1, 2346),
    *((mpt("a100-80", MPT_1B, context), 8, *row) for context, *row in [
        (512, 56, 4, 23148), (2048, 14, 4, 20513), (8192, 3, 4, 13814), (32768, 1, 4, 6275)]),
    *((mpt("a100-80", MPT_7B, context), 8, *row) for context, *row in [
        (1024, 64, 2, 4357), (8192, 8, 2, 3206), (32768, 2, 2, 1672), (65536, 1, 2, 1013)]),
    *((mpt("h100", MPT_1B, context), 8, *row) for context, *row in [
        (512, 56, 4, 52275), (2048, 14, 1, 45455), (8192, 3, 4, 29157), (32768, 1, 4, 12025)]),
    *((mpt("h100", MPT_3B, context), 8, *row) for context, *row in [
        (512, 40, 6, 27965), (4096, 5, 6, 20964), (16384, 1, 6, 11152)]),
    *((mpt("h100", MPT_7B, context), 8, *row) for context, *row in [
        (1024, 64, 2, 10203), (4096, 16, 2, 8611), (8192, 8, 2, 6935), (32768, 2, 2, 3318), (65536, 1, 2, 1956)])]


def estimate(tandem, job, gpus, micro_batch, accumulation):
    """(tokens a second and GPU, share of a step that is exposed communication)"""
    context = job.get("context", 2048)
    words = [tandem, "estimate", "--json", "--gpu", job["gpu"], "--vocab", job["vocab"], "--ranks", gpus, "--node-size", 8,
             "--train.precision", "bf16", "--dist.wire_dtype", "bf16", "--model.context", context,
             "--train.micro_batch", micro_batch, "--train.global_batch", micro_batch * accumulation * gpus]
    if "between_gb_s" in job:
        words += ["--between-gb-s", job["between_gb_s"]]
    for key, value in job.items():
        words += ["--" + key, value] if "." in key else []
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)
    row = next(row for row in json.loads(done.stdout)["rows"] if row["given"])
    return micro_batch * accumulation * context / row["step_ms"] * 1000, row["exposed_comm_ms"] / row["step_ms"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tandem")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    results = []
    print(f"{'':48} {'tokens a second and GPU':>28} {'':>8} {'against the first row':>22}\n"
          f"{'':48} {'published':>14} {'estimated':>13} {'error':>8} {'published':>11} {'estimated':>10} {'exposed':>9}")
    for job, gpus, micro_batch, accumulation, published in ROWS:
        estimated, exposed = estimate(chosen.tandem, job, gpus, micro_batch, accumulation)
        shard = f", states sharded in a {job['dist.shard']}" if "dist.shard" in job else ""
        row = {"source": job["source"] + shard, "model": job["model"], "gpu": job["gpu"], "context": job.get("context", 2048),
               "recompute": "train.recompute" in job, "gpus": gpus, "micro_batch": micro_batch,
               "accumulation": accumulation, "published": published, "estimated": estimated, "exposed": exposed}
        results.append(row)
        first = next(one for one in results if all(one[key] == row[key] for key in ["source", "model", "gpu"]))
        name = (f"{job['source']} {job['model']} {job.get('dist.shard', '')} {job['gpu']} {row['context']:5} "
                f"{gpus} x {micro_batch} x {accumulation}")
        print(f"{name:48} {published:14,} {estimated:13,.0f} {estimated / published - 1:+8.0%} {published / first['published']:11.0%} "
              f"{estimated / first['estimated']:10.0%} {exposed:9.0%}", flush=True)
    if chosen.json:
        with open(chosen.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in results)


main()
