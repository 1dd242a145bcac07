#!/usr/bin/env python3
"""Starts a SageMaker training job: checks the request, and sends it. README.md shows how; --help lists the options.

    launch/sagemaker/submit.py --instance ml.p4d.24xlarge --nodes 1 --image URI --role ARN --spot --data s3://b/data \\
        --checkpoints s3://b/runs/book -- train --config configs/gpt2_124m.cfg
"""
import argparse
import json
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "run"))
from errors import CONFIG, Failure

DAY_S = 86400
# Of the service: values in the request, and their lengths.
LONGEST_NAME, MOST_PARAMETERS, LONGEST_KEY, LONGEST_VALUE = 63, 100, 256, 2500
NAME = r"[a-zA-Z0-9](-*[a-zA-Z0-9])*"
ROLE = r"arn:aws[a-z-]*:iam::\d{12}:role/.+"
S3 = r"s3://[^/]+(/.*)?"
FILE_SYSTEM = r"(fs-[0-9a-f]{8,}):(/\S+)"


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(CONFIG, f"{message}; --help shows all options")


def parser():
    p = Parser(prog="launch/sagemaker/submit.py", usage="%(prog)s [options] -- train [--section.key VALUE ...]",
               allow_abbrev=False, description="Starts a SageMaker training job: checks the request, and sends it.")
    p.add_argument("--dry-run", action="store_true", help="print the request as JSON, send nothing")
    p.add_argument("--name", default="", help="of the job (tandem- and the time)")
    p.add_argument("--instance", required=True, metavar="TYPE", help="such as ml.p4d.24xlarge")
    p.add_argument("--nodes", type=whole, default=1, metavar="N", help="instances (1)")
    p.add_argument("--image", required=True, metavar="URI", help="of launch/docker, in ECR")
    p.add_argument("--role", required=True, metavar="ARN", help="that the job takes on")
    p.add_argument("--data", default="", metavar="S3", help="the channel `data`: all that begins with this, with one .h5 file")
    p.add_argument("--checkpoints", default="", metavar="S3", help="keeps the run of one instance, for the next job too")
    p.add_argument("--output", default="", metavar="S3", help="for the model and TensorBoard (`output/` beside --checkpoints)")
    p.add_argument("--fsx", default="", metavar="ID:/PATH", help="FSx for Lustre, channel `fsx`: the run of several instances")
    p.add_argument("--subnet", action="append", default=[], metavar="ID", help="of the file system")
    p.add_argument("--security-group", action="append", default=[], metavar="ID", help="which allows all traffic to itself")
    p.add_argument("--spot", action="store_true", help="instances that the service may interrupt, and starts again")
    p.add_argument("--max-run", type=whole, default=DAY_S, metavar="S", help="seconds of training (a day)")
    p.add_argument("--max-wait", type=whole, metavar="S", help="with --spot: seconds with all waiting (twice --max-run)")
    p.add_argument("--volume", type=whole, default=100, metavar="GB", help="disk of instances without disks of their own (100)")
    return p


def whole(text):
    if not re.fullmatch("[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def hyperparameters(words):
    """--section.key VALUE, --section.key=VALUE, and switches without a value."""
    found, rest = {}, list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not key:
            raise Failure(CONFIG, f"'{word}' belongs to no setting: write --section.key VALUE")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if key in found:
            raise Failure(CONFIG, f"--{key} stands twice: SageMaker takes one value")
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            raise Failure(CONFIG, f"--{key} has {len(value)} letters: SageMaker takes {LONGEST_VALUE}, of a name {LONGEST_KEY}")
        found[key] = value
    if len(found) > MOST_PARAMETERS:
        raise Failure(CONFIG, f"{len(found)} settings: SageMaker takes {MOST_PARAMETERS}, so put them into a file for --config")
    return found


def problems(chosen):
    """What the service would refuse, or would end the job for. launch/instances.json says which instances there are."""
    with open(os.path.join(os.path.dirname(HERE), "instances.json"), encoding="utf-8") as file:
        known = ["ml." + name for name in json.load(file)["types"]]
    if chosen.instance not in known:
        yield f"--instance {chosen.instance} is not in launch/instances.json, which has {', '.join(known)}"
    if len(chosen.name) > LONGEST_NAME:
        yield f"--name {chosen.name} has {len(chosen.name)} letters: SageMaker takes {LONGEST_NAME}"
    if not re.fullmatch(NAME, chosen.name):
        yield f"--name {chosen.name}: letters, digits and hyphens within"
    if not re.fullmatch(ROLE, chosen.role):
        yield f"--role {chosen.role}: must be like arn:aws:iam::123456789012:role/NAME"
    for option, value in [("data", chosen.data), ("checkpoints", chosen.checkpoints), ("output", chosen.output)]:
        if value and not re.fullmatch(S3, value):
            yield f"--{option} {value}: must be like s3://BUCKET/FOLDER"
    if chosen.fsx and not re.fullmatch(FILE_SYSTEM, chosen.fsx):
        yield f"--fsx {chosen.fsx}: must be like fs-0123456789abcdef0:/MOUNT/FOLDER"
    if chosen.nodes > 1 and not chosen.fsx:
        yield f"--nodes {chosen.nodes} needs --fsx: several instances share nothing else"
    if (chosen.fsx or chosen.subnet or chosen.security_group) and not (chosen.subnet and chosen.security_group):
        yield "--fsx needs --subnet and --security-group: it is in a VPC"
    if not chosen.data and not chosen.fsx:
        yield "there is no data: give --data or --fsx"
    if chosen.spot and not chosen.checkpoints:
        yield "--spot needs --checkpoints: an interrupted job would begin anew"
    if chosen.max_wait and not chosen.spot:
        yield "--max-wait is for --spot"
    if chosen.max_wait and chosen.max_wait < chosen.max_run:
        yield f"--max-wait {chosen.max_wait} is less than --max-run {chosen.max_run}: it counts the waiting too"
    if not chosen.output:
        yield "there is no place for the model: give --output"


def beside(checkpoints):
    """s3://b/runs/book -> s3://b/runs/output/book; empty for a whole bucket. Not below the checkpoints, which come back."""
    folder, _, name = checkpoints.rstrip("/").rpartition("/")
    return f"{folder}/output/{name}" if folder not in ("", "s3:/", "s3:") else ""


def request(chosen, settings):
    with open(os.path.join(HERE, "metrics.json"), encoding="utf-8") as file:
        metrics = json.load(file)
    channels = []
    if chosen.data:
        source = {"S3DataType": "S3Prefix", "S3Uri": chosen.data, "S3DataDistributionType": "FullyReplicated"}
        channels.append({"ChannelName": "data", "DataSource": {"S3DataSource": source}})
    if chosen.fsx:
        number, folder = re.fullmatch(FILE_SYSTEM, chosen.fsx).groups()
        source = {"FileSystemId": number, "FileSystemAccessMode": "rw", "FileSystemType": "FSxLustre", "DirectoryPath": folder}
        channels.append({"ChannelName": "fsx", "DataSource": {"FileSystemDataSource": source}})
    limits = {"MaxRuntimeInSeconds": chosen.max_run}
    if chosen.spot:
        limits["MaxWaitTimeInSeconds"] = chosen.max_wait or 2 * chosen.max_run
    result = {
        "TrainingJobName": chosen.name,
        "RoleArn": chosen.role,
        "AlgorithmSpecification": {"TrainingImage": chosen.image, "TrainingInputMode": "File", "MetricDefinitions": metrics},
        "HyperParameters": settings,
        "InputDataConfig": channels,
        "OutputDataConfig": {"S3OutputPath": chosen.output},
        "TensorBoardOutputConfig": {"S3OutputPath": chosen.output, "LocalPath": "/opt/ml/output/tensorboard"},
        "ResourceConfig": {"InstanceType": chosen.instance, "InstanceCount": chosen.nodes, "VolumeSizeInGB": chosen.volume},
        "StoppingCondition": limits,
        "EnableManagedSpotTraining": chosen.spot,
    }
    if chosen.checkpoints:
        result["CheckpointConfig"] = {"S3Uri": chosen.checkpoints, "LocalPath": "/opt/ml/checkpoints"}
    if chosen.subnet or chosen.security_group:
        result["VpcConfig"] = {"Subnets": chosen.subnet, "SecurityGroupIds": chosen.security_group}
    return result


def main(arguments):
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser().parse_args(arguments[:split])
    if arguments[split + 1:split + 2] != ["train"]:
        raise Failure(CONFIG, "nothing to train: end with `-- train --config FILE ...`")
    chosen.name = chosen.name or time.strftime("tandem-%Y%m%d-%H%M%S")
    chosen.output = chosen.output or beside(chosen.checkpoints)
    for line in problems(chosen):
        raise Failure(CONFIG, line)
    body = request(chosen, hyperparameters(arguments[split + 2:]))
    if chosen.dry_run:
        print(json.dumps(body, indent=2))
        return
    print(send(body))


def send(body):
    """The job's ARN."""
    try:
        import boto3  # needed for this alone
    except ImportError:
        raise Failure(CONFIG, "boto3 is not installed: pip install boto3, or send what --dry-run prints")
    try:
        return boto3.client("sagemaker").create_training_job(**body)["TrainingJobArn"]
    except Exception as error:  # boto3's kinds have no common base: no region, no credentials, refused
        raise Failure(CONFIG, "not sent: " + " ".join(str(error).split()))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failure as failure:
        print(f"submit: {failure}", file=sys.stderr)
        sys.exit(failure.code)
