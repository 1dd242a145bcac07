"""The order in which `tandem train` takes samples, computed as src/core/rng.h and src/data/sampler.h describe it."""


def philox(key, counter):
    c, k, low = list(counter), list(key), 2**32 - 1
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & low, a >> 32 ^ c[3] ^ k[1], a & low]
        k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
    return c


def sample_order_words(seed, stream, epoch):
    key = philox([seed, 0], [3, stream, 0, 0])[:2]
    return philox(key, [epoch, 0, 0, 0])


def permuted(size, key, index):
    bits = max(2, (size - 1).bit_length())
    widths = bits // 2, bits - bits // 2
    while True:
        left, right = index >> widths[1], index & 2**widths[1] - 1
        for turn in range(8):
            words = philox(key, [right, 0, turn, 0])
            left, right = right, left ^ (words[0] << 32 | words[1]) & 2**widths[turn % 2] - 1
        index = left << widths[1] | right
        if index < size:
            return index


def sample(seed, position, size):
    """(epoch, index of the sample) at this position."""
    epoch, index = divmod(position, size)
    return epoch, permuted(size, sample_order_words(seed, 0, epoch)[:2], index)


def windows(context, tokens):
    """How many samples of context + 1 tokens an epoch has."""
    return (tokens - context) // context


def pools(seed, documents):
    """The documents of each pool (src/data/packing.h), by number."""
    groups = (documents + 15) // 16
    key = philox([seed, 0], [3, 2, 0, 0])[:2]
    order = [permuted(groups, key, group) for group in range(groups)]
    return [[document for group in order[first:first + 64] for document in range(16 * group, min(16 * group + 16, documents))]
            for first in range(0, groups, 64)]


def window_start(seed, epoch, index, context, tokens):
    """The first token of a sample."""
    offsets = min(context, tokens - windows(context, tokens) * context)
    return (sample_order_words(seed, 1, epoch)[0] * offsets >> 32) + index * context
