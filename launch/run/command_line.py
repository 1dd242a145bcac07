"""What the command lines of the launchers share: kinds of values, and one line for whatever is wrong."""
import argparse
import re
import sys

from errors import CONFIG, DATA, STOPPED, Failure

# An image in a registry, after the registry's name.
PART = "[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
REPOSITORY = rf"{PART}(/{PART})*(:[a-zA-Z0-9_][a-zA-Z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
SHOWN = 60  # a refused value is shown up to this many letters


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Failure(CONFIG, f"{message}; --help shows all options")


def whole(low, high=10**9):
    """An option's type: a whole number."""
    def convert(text):
        if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text[:SHOWN]!r} is no whole number from {low} to {high}")
        return int(text)
    return convert


def like(pattern, example, longest):
    """An option's type: a text of at most `longest` letters."""
    def convert(text):
        if not re.fullmatch(pattern, text) or len(text) > longest:
            raise argparse.ArgumentTypeError(f"{text[:SHOWN]!r} must be like {example}, and has at most {longest} letters")
        return text
    return convert


def filled(text):
    """An option's type: any text but an empty one, which a variable that is not set gives."""
    if not text:
        raise argparse.ArgumentTypeError("is empty: give it a value, or leave it out")
    return text


def settings_in(words):
    """(key, value) of each --key VALUE and --key=VALUE. A switch has the value None, a word that belongs to no key the key ""."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not key:
            yield "", word
        elif equals:
            yield key, value
        else:
            yield key, rest.pop(0) if rest and not rest[0].startswith("--") else None


def printable(text):
    """The text in one line, and without what would move the cursor of a terminal."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def run_script(name, main):
    """Ends as main(words) says, or with a line and the exit code of its Failure."""
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        print(f"{name}: {printable(str(failure))}", file=sys.stderr)
        sys.exit(failure.code)
    except OSError as error:
        print(f"{name}: {printable(str(error))}", file=sys.stderr)
        sys.exit(DATA)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
