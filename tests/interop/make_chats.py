#!/usr/bin/env python3
"""Conversations and other instruction data, and what Hugging Face's apply_chat_template makes of them.

    make_chats.py FOLDER_OF_TEMPLATES FILE    writes chats.json for tests/interop/test_chats.py (needs pip's transformers); the folder
                                              has chatml.jinja and llama3.jinja, as `tandem export` writes them
"""
import json
import os
import random
import sys

import transformers
from make_tokenizers import SPECIAL, llama3_like, mixed_texts, qwen_like, sentence_pieces

MARKS = {"chatml": ["<|im_start|>", "<|im_end|>"], "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]}
SPACES = ["", "", "", " ", "\n", "\n\n", "\t ", "\u3000", "\x1c"]


def tokenizers(size):
    """Name, template, tokenizer with the template's marks."""
    texts = mixed_texts(size, 1)
    for name, template, tokenizer in [("Qwen", "chatml", qwen_like(texts, size)), ("Llama 3", "llama3", llama3_like(texts, size)),
                                      ("Llama 2", "chatml", next(sentence_pieces(texts, size))[1])]:
        tokenizer.add_special_tokens(MARKS[template])
        yield name, template, tokenizer


def records(count, seed):
    """Of all kinds. No text spells a special token: transformers would read it as one."""
    dice = random.Random(seed)
    texts = iter(mixed_texts(40 * count, seed))

    def said():
        text = next(texts)
        for special in [*SPECIAL, "<s>", "</s>"]:
            text = text.replace(special, "")
        return dice.choice(SPACES) + text + dice.choice(SPACES)

    def record():
        kind = dice.random()
        if kind < 0.15:
            return {"prompt": said(), "completion": said() + "."}
        if kind < 0.3:
            more = dice.choice([{}, {"input": ""}, {"input": said()}])
            return {"instruction": said(), **more, "output": said() + ".", "number": 3}
        messages = [{"role": "system", "content": said()}] if dice.random() < 0.3 else []
        for _ in range(dice.randint(1, 3)):
            messages += [{"role": "user", "content": said()}, {"role": "assistant", "content": said() + "."}]
        return {"messages": messages + [{"role": "user", "content": said()}] * (dice.random() < 0.1)}
    return [record() for _ in range(count)]


def messages_of(record):
    if "messages" in record:
        return record["messages"]
    asked = record.get("prompt", record.get("instruction"))
    asked += "\n\n" + record["input"] if record.get("input") else ""
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": record.get("completion", record.get("output"))}]


def expected(tokenizer, template, records):
    """Ids and masks of each record."""
    made = [tokenizer.apply_chat_template(messages_of(record), chat_template=template, tokenize=True, return_dict=True,
                                          return_assistant_tokens_mask=True) for record in records]
    return [{"tokens": one["input_ids"], "loss": one["assistant_masks"]} for one in made]


def main():
    cases, some = [], records(20, 5)
    for name, template, tokenizer in tokenizers(300):
        with open(os.path.join(sys.argv[1], template + ".jinja"), encoding="utf-8") as file:
            jinja = file.read()
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        cases.append({"name": name, "template": template, "jinja": jinja, "tokenizer": json.loads(tokenizer.to_str()),
                      "expected": expected(fast, jinja, some)})
    with open(sys.argv[2], "w", encoding="ascii") as file:
        json.dump({"records": some, "cases": cases}, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
