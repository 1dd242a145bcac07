#!/usr/bin/env python3
"""Instruction data against Hugging Face's transformers: ids and masks of 2,000 records by the template that is exported.

    check_chats.py build/tandem [unittest arguments]

Part of tests/nightly.sh. TANDEM_REQUIRE_INTEROP=1 installs what is missing; else the check is skipped (exit code 77).
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "program")]

import packages

packages.require("check of instruction data", "transformers", "tokenizers", "h5py", "jinja2")

import transformers

import make_chats
import sft_files
import tandem_program
from tandem_program import Workspace

RECORDS = 2000


class Chats(Workspace):
    def test_ids_and_masks(self):
        records = make_chats.records(RECORDS, 7)
        for name, template, tokenizer in make_chats.tokenizers(2000):
            with self.subTest(name):
                folder = sft_files.write_tokenizer(self.path(name), json.loads(tokenizer.to_str()))
                mine = sft_files.prepared(self, records, folder, template)
                exported = sft_files.exported(self, mine.path, name.replace(" ", ""))
                with open(os.path.join(exported, "chat_template.jinja"), encoding="utf-8") as file:
                    jinja = file.read()
                theirs = make_chats.expected(transformers.PreTrainedTokenizerFast.from_pretrained(exported), jinja, records)
                different = [record for record, one, other in zip(records, mine.examples, theirs, strict=True) if one != other]
                self.assertEqual(different, [])
                print(f"{name}: {len(records)} records, {sum(len(one['tokens']) for one in theirs)} tokens, "
                      f"{sum(sum(one['loss']) for one in theirs)} learned")


if __name__ == "__main__":
    tandem_program.main()
