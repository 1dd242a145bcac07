#!/usr/bin/env python3
"""Small tokenizers and texts for tests of tokenizers, and what Hugging Face's `tokenizers` makes of them.

    make_tokenizers.py FILE    writes tokenizers.json for test_tokenizers.py (needs pip's tokenizers)
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, Sequence, Split

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|begin_of_text|>"]
SPACE = "\u2581"  # as SentencePiece names it
# First and last letters of alphabets whose characters Unicode has had for long.
ALPHABETS = [(0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x620, 0x64A),
             (0x904, 0x939), (0xE01, 0xE2E), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x3041, 0x3094), (0x10D0, 0x10F0)]
OTHERS = ["'s", "'T", "'re", "'VE", "'\u017f", "'ll", "n't", "e\u0301", "n\u0303\u0323", "\u093f", "\U0001F600", "\u2764\ufe0f",
          "\U0001F469\u200d\U0001F469\u200d\U0001F467", "\U0001F1E9\U0001F1EA", "  ", "\t", "\n", "\r\n", "\n\n  ", "\u00a0",
          "\u3000", "\u180e", "\u2028", "\x85", "\x1c", "\x0b", "\u200b", "\u1680", "0", "12", "2024", "1234567", "3.14",
          "\u00bd", "\u2167", "\u0663\u0664", "\u00b2", "!", "...", "--", "</s>", "://", "\u2014", "\u201c",
          "\u3002", "$", "\u20ac", "_",
          "\x00", "\ufeff", "\ufffd", "\u01c5", "\u02b0", *SPECIAL, "<|endoftext|", "added", "addedlong", "\u00e9t\u00e9",
          SPACE, SPACE + "the", "<0x0A>", "<s>"]
WORDS = ("the of and to in is that it was for on are as with his they at be this from have or by one had not but what "
         "all").split()


def mixed_texts(count, seed):
    """Texts of all kinds of characters, whole UTF-8."""
    dice = random.Random(seed)
    def letters():
        first, last = dice.choice(ALPHABETS)
        return "".join(chr(dice.randint(first, last)) for _ in range(dice.randint(1, 8)))
    def part():
        kind = dice.random()
        if kind < 0.6:
            return dice.choice(WORDS) if kind < 0.3 else letters()
        return dice.choice(OTHERS) * dice.choice([1, 1, 1, 2, 5])
    def text():
        return "".join(part() + dice.choice(["", " ", " ", " "]) for _ in range(dice.randint(1, 25)))
    return [text() for _ in range(count)]


def trained(pre_tokenizer, texts, size):
    """A tokenizer with the given pre-tokenizer; the alphabet and the end of text as Tandem has them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL[:1], initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False))
    return tokenizer


def gpt2_like(texts, size):
    return trained(ByteLevel(add_prefix_space=False), texts, size)


def split(pattern):
    return Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3_like(texts, size, pattern=LLAMA3):
    """Words that are tokens stay whole although their merges are missing, and BOS comes first."""
    made = json.loads(trained(split(pattern), texts, size).to_str())
    made["model"]["ignore_merges"] = True
    del made["model"]["merges"][::7]
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.add_special_tokens(SPECIAL[1:])
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[
        ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen_like(texts, size):
    """Text is normalised first, but not where an added token stands that is looked for before."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split(QWEN)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL[:1], initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False))
    tokenizer.add_tokens([AddedToken("e\u0301t", normalized=False), AddedToken("n\u0303", normalized=True)])
    return tokenizer


def with_added_tokens(texts, size):
    """Added tokens that text may become, an EOS, digits one by one, and a space before every text."""
    tokenizer = trained(Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=True)]), texts, size)
    tokenizer.add_tokens([AddedToken("added", normalized=True), AddedToken("addedlong", normalized=True),
                          AddedToken("\u00e9t", normalized=False), AddedToken("<|endof", normalized=False)])
    tokenizer.add_special_tokens(SPECIAL[1:])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    return tokenizer


def sentence_piece_like(texts, size, normalizer=None, pre_tokenizer=None, strip=True, splits=True):
    """What a SentencePiece model of BPE becomes: characters first, and bytes for those that are no tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = Metaspace(split=splits)
    texts = [text for text in texts if "s>" not in text]  # merges make no special token
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, limit_alphabet=size // 4, show_progress=False))
    made = json.loads(tokenizer.to_str())
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [name for name in sorted(made["model"]["vocab"], key=made["model"]["vocab"].get) if name not in names]
    made["model"].update(vocab={name: at for at, name in enumerate(names)}, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer.from_str(json.dumps({**made, "pre_tokenizer": None}))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens(names[:3])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def sentence_pieces(texts, size):
    spaces = normalizers.Replace(" ", SPACE)
    yield "Llama 2", sentence_piece_like(texts, size, normalizers.Sequence([normalizers.Prepend(SPACE), spaces]))
    gemma = sentence_piece_like(texts, size, spaces, Split(" ", "merged_with_previous"), strip=False)
    gemma.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("added", normalized=True),
                      AddedToken(SPACE * 2, normalized=False), AddedToken("all the", normalized=True)])
    yield "Gemma", gemma
    # Without a split, tokens go across words.
    for scheme, splits in [("first", True), ("first", False), ("always", False), ("never", True)]:
        cut = Sequence([Digits(individual_digits=True), Metaspace(prepend_scheme=scheme, split=splits)])
        tokenizer = sentence_piece_like(texts, size, None, cut, True, splits)
        tokenizer.add_tokens([AddedToken("added", normalized=splits), AddedToken("\u00e9t", normalized=False)])
        yield f"Metaspace {scheme}{' split' * splits}", tokenizer


def behaviours(texts, size):
    """A tokenizer for each way of splitting. It was trained on words of GPT-2, so that merges would go across these splits."""
    for name in ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            steps = [Split(Regex(r"[aeiou ]|\d+"), name, invert), Split("th", name, invert), Digits(),
                     ByteLevel(add_prefix_space=False, use_regex=False)]
            tokenizer = gpt2_like(texts, size)
            tokenizer.pre_tokenizer = Sequence(steps)
            yield f"{name}{' inverted' * invert}", tokenizer


def ids_of(tokenizer, texts):
    """With special tokens around a text, but none from inside it."""
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def decoded(tokenizer, texts):
    """At most 5,000 texts of tokens; None for those with added tokens whose letters ByteLevel reads as bytes."""
    tokenizer.encode_special_tokens = True
    letters = isinstance(tokenizer.decoder, decoders.ByteLevel) and {
        number for number, token in tokenizer.get_added_tokens_decoder().items() if not token.content.isascii()}
    return [None if letters and letters & set(encoding.ids) else tokenizer.decode(encoding.ids, skip_special_tokens=False)
            for encoding in tokenizer.encode_batch(texts[:5000], add_special_tokens=False)]


def all_tokenizers(texts, size):
    yield "GPT-2", gpt2_like(texts, size)
    yield "Llama 3", llama3_like(texts, size)
    yield "GPT-4o", llama3_like(texts, size, GPT4O)
    yield "Qwen", qwen_like(texts, size)
    yield "added tokens", with_added_tokens(texts, size)
    yield from sentence_pieces(texts, size)
    yield from behaviours(texts, size)


def main():
    corpus, texts = mixed_texts(60, 1), mixed_texts(30, 2)
    cases = [{"name": name, "tokenizer": json.loads(tokenizer.to_str()), "ids": ids_of(tokenizer, texts),
              "decoded": decoded(tokenizer, texts[:5])}
             for name, tokenizer in all_tokenizers(corpus, 300) if "inverted" not in name]
    trained_on = [*mixed_texts(40, 3), "aaaaaaaaaaaaaaaa aaaa aaaaaaa baaab baab" * 3]
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump({"texts": texts, "cases": cases, "trained_on": trained_on,
                   "trained": json.loads(gpt2_like(trained_on, 700).to_str())["model"]}, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
