#!/usr/bin/env python3
"""Starts a SageMaker training job: checks the request, and sends it. README.md shows how; --help lists the options.

    launch/sagemaker/submit.py --instance ml.p4d.24xlarge --nodes 1 --image URI --role ARN --spot --data s3://b/data \\
        --checkpoints s3://b/runs/book -- train --config configs/gpt2_124m.cfg
"""
import json
import os
import re
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "run"))
from command_line import Parser, REPOSITORY, like, run_script, settings_in, whole
from container import SHARED, chosen_by
from errors import CONFIG, Failure
from instances import machine_types

DAY_S = 86400
# What the service allows in a request.
MOST_PARAMETERS, LONGEST_KEY, LONGEST_VALUE, MOST_TAGS, MOST_SUBNETS, MOST_GROUPS = 100, 256, 2500, 50, 16, 5
FILE_SYSTEM = r"(fs-[0-9a-f]{8,17}):(/\S+)"
TAG = r"(?!(?i:aws:))[\w .:/+@-]{1,128}=[\w .:/=+@-]{0,256}"
NAME = like(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", "my-job-1 (letters, digits and hyphens within)", 63)
IMAGE = like(r"[0-9]{12}\.dkr[.-]ecr[a-z0-9.-]+/" + REPOSITORY, "123456789012.dkr.ecr.us-east-1.amazonaws.com/tandem:1", 255)
ROLE = like(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[a-zA-Z0-9_+=,.@/-]+", "arn:aws:iam::123456789012:role/NAME", 2048)
S3 = like(r"s3://[a-zA-Z0-9.-]+(/.*)?", "s3://BUCKET/FOLDER", 1024)


def parser():
    p = Parser(prog="launch/sagemaker/submit.py", usage="%(prog)s [options] -- train [--section.key VALUE ...]",
               allow_abbrev=False, description="Starts a SageMaker training job: checks the request, and sends it.")
    p.add_argument("--dry-run", action="store_true", help="print the request as JSON, send nothing")
    p.add_argument("--name", type=NAME, default=time.strftime("tandem-%Y%m%d-%H%M%S"), help="of the job (tandem- and the time)")
    p.add_argument("--instance", required=True, metavar="TYPE", help="such as ml.p4d.24xlarge")
    p.add_argument("--nodes", type=whole(1, 1000), default=1, metavar="N", help="instances (1); a new account may have 20")
    p.add_argument("--image", type=IMAGE, required=True, metavar="URI", help="of launch/docker, in ECR")
    p.add_argument("--role", type=ROLE, required=True, metavar="ARN", help="that the job takes on")
    p.add_argument("--data", type=S3, metavar="S3", help="the channel `data`: all that begins with this, with one .h5 file")
    p.add_argument("--checkpoints", type=S3, metavar="S3", help="keeps the run, for the next job too, without --fsx")
    p.add_argument("--output", type=S3, metavar="S3", help="for the model and TensorBoard (`output/` beside --checkpoints)")
    p.add_argument("--fsx", type=like(FILE_SYSTEM, "fs-0123456789abcdef0:/MOUNT/FOLDER", 4096), metavar="ID:/PATH",
                   help="FSx for Lustre, channel `fsx`: keeps the run, also of several instances")
    p.add_argument("--subnet", type=like("subnet-[0-9a-f]+", "subnet-0123456789abcdef0", 32), action="append", default=[],
                   metavar="ID", help="of the file system")
    p.add_argument("--security-group", type=like("sg-[0-9a-f]+", "sg-0123456789abcdef0", 32), action="append", default=[],
                   metavar="ID", help="which allows all traffic to itself")
    p.add_argument("--spot", action="store_true", help="instances that the service may interrupt, and starts again")
    p.add_argument("--max-run", type=whole(1, 28 * DAY_S), default=DAY_S, metavar="S", help="seconds of training (a day)")
    p.add_argument("--max-wait", type=whole(1), metavar="S", help="with --spot: seconds with all waiting (twice --max-run)")
    p.add_argument("--volume", type=whole(1, 16384), default=100, metavar="GB", help="disk of instances without disks of their own (100)")
    p.add_argument("--tag", type=like(TAG, "team=vision", 385), action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    return p


def hyperparameters(words):
    """--section.key VALUE, --section.key=VALUE, and switches without a value."""
    found = {}
    for key, value in settings_in(words):
        value = "true" if value is None else value
        if not key:
            raise Failure(CONFIG, f"'{value}' belongs to no setting: write --section.key VALUE")
        if key.startswith("sagemaker_"):
            raise Failure(CONFIG, f"--{key} never reaches `tandem train`: the names sagemaker_... are those of AWS's own containers")
        if key in found:
            raise Failure(CONFIG, f"--{key} stands twice: SageMaker takes one value")
        if len(key) > LONGEST_KEY or not re.fullmatch(f".{{0,{LONGEST_VALUE}}}", value):
            raise Failure(CONFIG, f"--{key[:LONGEST_KEY]} has {len(value)} letters: SageMaker takes {LONGEST_VALUE} in one line, of a "
                                  f"name {LONGEST_KEY}")
        found[key] = value
    if len(found) > MOST_PARAMETERS:
        raise Failure(CONFIG, f"{len(found)} settings: SageMaker takes {MOST_PARAMETERS}, so put them into a file for --config")
    return found


def problems_of_tags(chosen):
    if len(chosen.tag) > MOST_TAGS:
        yield f"--tag stands {len(chosen.tag)} times: SageMaker takes {MOST_TAGS}"
    if len({tag.partition("=")[0] for tag in chosen.tag}) < len(chosen.tag):
        yield "--tag: a key stands twice"


def problems(chosen):
    """What the service would refuse, or would end the job for. launch/instances.json says which instances there are."""
    known = ["ml." + name for name in machine_types()]
    if chosen.instance not in known:
        yield f"--instance {chosen.instance} is not in launch/instances.json, which has {', '.join(known)}"
    yield from problems_of_tags(chosen)
    for option, given, most in [("subnet", chosen.subnet, MOST_SUBNETS), ("security-group", chosen.security_group, MOST_GROUPS)]:
        if len(given) > most:
            yield f"--{option} stands {len(given)} times: SageMaker takes {most}"
    in_vpc, wait = chosen.fsx or chosen.subnet or chosen.security_group, chosen.max_wait
    yield from (line for is_wrong, line in [
        (chosen.nodes > 1 and not chosen.fsx, f"--nodes {chosen.nodes} needs --fsx: several instances share nothing else"),
        (in_vpc and not (chosen.subnet and chosen.security_group), "--fsx needs --subnet and --security-group: it is in a VPC"),
        (not chosen.data and not chosen.fsx, "there is no data: give --data or --fsx"),
        (not chosen.checkpoints and not chosen.fsx, "nothing keeps the run: give --checkpoints or --fsx"),
        (wait and not chosen.spot, "--max-wait is for --spot"),
        (wait and wait < chosen.max_run, f"--max-wait {wait} is less than --max-run {chosen.max_run}: it counts the waiting too"),
        (chosen.checkpoints and f"{chosen.output}/".startswith(chosen.checkpoints.rstrip("/") + "/"),
         "--output is in --checkpoints, which a restart copies back: choose a folder beside it"),
        (not chosen.output, "there is no place for the model: give --output"),
    ] if is_wrong)


def beside(checkpoints):
    """s3://b/runs/book -> s3://b/runs/output/book; empty for a whole bucket. It is not below the checkpoints, because those
    are copied back at a restart."""
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
    if chosen.tag:
        result["Tags"] = [dict(zip(("Key", "Value"), tag.split("=", 1))) for tag in chosen.tag]
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
    chosen.output = chosen.output or beside(chosen.checkpoints or "")
    for line in problems(chosen):
        raise Failure(CONFIG, line)
    settings = hyperparameters(arguments[split + 2:])
    chosen_by(settings, "/opt/ml", [SHARED] * bool(chosen.fsx))
    body = request(chosen, settings)
    print(json.dumps(body, indent=2) if chosen.dry_run else send(body))


def client():
    """boto3's, which nothing else needs."""
    try:
        import boto3
    except ImportError:
        raise Failure(CONFIG, "boto3 is not installed: pip install boto3, or send what --dry-run prints")
    try:
        return boto3.client("sagemaker")
    except Exception as error:  # no region
        raise Failure(CONFIG, f"not sent: {error}")


def send(body):
    """The job's ARN."""
    service = client()
    try:
        return service.create_training_job(**body)["TrainingJobArn"]
    except Exception as error:  # boto3's kinds have no common base: no region, no credentials, refused
        raise Failure(CONFIG, f"not sent: {error}")


if __name__ == "__main__":
    run_script("submit", main)
