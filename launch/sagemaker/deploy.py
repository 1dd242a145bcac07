#!/usr/bin/env python3
"""Puts a trained model behind a SageMaker endpoint: checks the three requests, and sends them. --help lists the options.

    launch/sagemaker/deploy.py --model s3://b/runs/output/book/model.tar.gz --instance ml.g5.xlarge --image URI --role ARN
"""
import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "run")]
from command_line import Parser, like, run_script, whole
from errors import CONFIG, Failure
from submit import IMAGE, NAME, ROLE, S3, TAG, client, problems_of_tags

OPTION = like(r"[a-z]+(-[a-z]+)*=\S+", "batch=32, of `tandem serve --help`", 1024)
GIVEN = ("checkpoint", "name", "host", "port")  # launch/sagemaker/serve gives these
# Values as src/commands/serve.cpp takes them. But SageMaker gives up on an answer after 60 s, and kills a container 30 s after SIGTERM.
OPTIONS = {"base": str, "adapter": str, "tokenizer": str, "template": like("plain|chatml|llama3", "plain, chatml or llama3", 6),
           "batch": whole(1, 1024), "context": whole(0, 1 << 24), "queue": whole(1, 1 << 20), "max-body-kb": whole(1, 1 << 20),
           "timeout-s": whole(1, 59), "grace-s": whole(0, 29), "device": like("auto|cpu|cuda", "auto, cpu or cuda", 4),
           "threads": whole(0, 4096)}


def parser():
    p = Parser(prog="launch/sagemaker/deploy.py", allow_abbrev=False,
               description="Puts a trained model behind a SageMaker endpoint: checks the requests, and sends them.")
    p.add_argument("--dry-run", action="store_true", help="print the requests as JSON, send nothing")
    p.add_argument("--model", type=S3, required=True, metavar="S3", help="model.tar.gz of a training job, or of a run or an exported model")
    p.add_argument("--name", type=NAME, default=time.strftime("tandem-%Y%m%d-%H%M%S"), help="of model and endpoint (tandem- and the time)")
    p.add_argument("--instance", type=like(r"ml\.[a-z0-9-]+\.[a-z0-9]+", "ml.g5.xlarge", 63), required=True, metavar="TYPE",
                   help="with a GPU or without")
    p.add_argument("--count", type=whole(1, 1000), default=1, metavar="N", help="instances (1)")
    p.add_argument("--image", type=IMAGE, required=True, metavar="URI", help="of launch/docker, in ECR")
    p.add_argument("--role", type=ROLE, required=True, metavar="ARN", help="that the endpoint takes on")
    p.add_argument("--option", type=OPTION, action="append", default=[], metavar="NAME=VALUE", help="of tandem serve; may be repeated")
    p.add_argument("--startup", type=whole(60, 3600), default=600, metavar="S", help="seconds to load image and model, each (600)")
    p.add_argument("--tag", type=like(TAG, "team=vision", 385), action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    return p


def environment(options):
    found = {}
    for option in options:
        name, _, value = option.partition("=")
        if name in GIVEN:
            raise Failure(CONFIG, f"--option {name}: launch/sagemaker/serve sets it")
        if name not in OPTIONS:
            raise Failure(CONFIG, f"--option {name}: `tandem serve` has no such option; it has {', '.join(OPTIONS)}")
        try:
            OPTIONS[name](value)
        except argparse.ArgumentTypeError as error:
            raise Failure(CONFIG, f"--option {name}: {error}{'; SageMaker waits no longer' * name.endswith('-s')}")
        key = "TANDEM_SERVE_" + name.upper().replace("-", "_")
        if key in found:
            raise Failure(CONFIG, f"--option {name} stands twice")
        found[key] = value
    return found


def requests(chosen):
    """The arguments of boto3's create_model, create_endpoint_config and create_endpoint."""
    if not chosen.model.endswith(".tar.gz"):
        raise Failure(CONFIG, f"--model {chosen.model}: SageMaker takes a model.tar.gz")
    tags = [dict(zip(("Key", "Value"), tag.split("=", 1))) for tag in chosen.tag]
    container = {"Image": chosen.image, "ModelDataUrl": chosen.model, "Environment": environment(chosen.option)}
    variant = {"VariantName": "all", "ModelName": chosen.name, "InstanceType": chosen.instance, "InitialInstanceCount": chosen.count,
               "ModelDataDownloadTimeoutInSeconds": chosen.startup, "ContainerStartupHealthCheckTimeoutInSeconds": chosen.startup}
    return {"create_model": {"ModelName": chosen.name, "ExecutionRoleArn": chosen.role, "PrimaryContainer": container, "Tags": tags},
            "create_endpoint_config": {"EndpointConfigName": chosen.name, "ProductionVariants": [variant], "Tags": tags},
            "create_endpoint": {"EndpointName": chosen.name, "EndpointConfigName": chosen.name, "Tags": tags}}


def main(arguments):
    chosen = parser().parse_args(arguments)
    for line in problems_of_tags(chosen):
        raise Failure(CONFIG, line)
    bodies = requests(chosen)
    if chosen.dry_run:
        print(json.dumps(bodies, indent=2))
        return
    service, made = client(), []
    for name, body in bodies.items():
        try:
            answer = getattr(service, name)(**body)
        except Exception as error:  # boto3's kinds have no common base: no region, no credentials, refused
            remove = " && ".join(f"aws sagemaker delete-{kind} --{kind}-name {chosen.name}" for kind in reversed(made))
            left = f"; already made: {' and '.join(made)} {chosen.name}; remove with `{remove}`" if made else ""
            raise Failure(CONFIG, f"{name}: not sent: {error}{left}")
        made.append(name.removeprefix("create_").replace("_", "-"))
    print(answer["EndpointArn"])


if __name__ == "__main__":
    run_script("deploy", main)
