"""Messages of eight bits."""
from table import Mutant

BUILD = "release"
BLOCKS = "comm/sharding/eight_bits/block_functions.h"
PLACES = "comm.eight_bits EightBits.RandomNumbersAreThoseOfTheirPlace"
MUTANTS = [
    Mutant("traffic: a scale is rounded down", BLOCKS, "(std::bit_cast<int32_t>(scale) + kLow) & ~kLow", "std::bit_cast<int32_t>(scale) & ~kLow",
           ["comm.eight_bits EightBits.ErrorsAreBelowTheirBounds"]),
    Mutant("traffic: a scale has all its bits", BLOCKS, "(std::bit_cast<int32_t>(scale) + kLow) & ~kLow", "std::bit_cast<int32_t>(scale)",
           ["comm.eight_bits EightBits.ErrorsAreBelowTheirBounds"]),
    Mutant("traffic: a scale may be smaller than any normal number", BLOCKS, ", 0x1p-126f)", ", 0x1p-149f)",
           ["comm.eight_bits EightBits.ErrorsAreBelowTheirBounds"]),
    Mutant("traffic: a number that is not finite is forgotten", BLOCKS, "      largest < kBlockInfinity ? ", "      true ? ",
           ["comm.eight_bits EightBits.ABlockThatIsNotFiniteSaysSo"]),
    Mutant("traffic: all fractions round up alike", BLOCKS, "(u < quotient - below ? 1 : 0)", "(u < 0.5f ? 1 : 0)",
           ["comm.eight_bits EightBits.RandomRoundingHasNoBias"]),
    Mutant("traffic: all steps round alike", BLOCKS, "static_cast<uint32_t>(numbers.step),", "0,", [PLACES]),
    Mutant("traffic: all micro-steps round alike", BLOCKS, "static_cast<uint32_t>(numbers.micro_step)}", "0}", [PLACES]),
    Mutant("traffic: all ranks round alike", BLOCKS, "RandomUse::kRound, rank)", "RandomUse::kRound, 0)", [PLACES]),
    Mutant("traffic: all messages round alike", BLOCKS, "(first / kBlockElements + ", "(", [PLACES]),
    Mutant("traffic: both roundings of an element are alike", BLOCKS, "(uint64_t{turn} << 62) + ", "", [PLACES]),
    Mutant("traffic: a sum is rounded in the turn of its addends", "comm/sharding/group.cpp", "      ++eight_bits->turn;\n", "",
           ["comm.group_np2 GroupTest.EightBitsAreSummedAsDefined"]),
    Mutant("traffic: values are rounded inside nodes, too", "comm/sharding/group.cpp",
           "    inside_->all_gather(in, out);\n  }\n}", "    gather(*inside_, in, out, eight_bits);\n  }\n}",
           ["comm.group_np4 GroupTest.EightBitsAreGatheredBetweenNodes"]),
    Mutant("traffic: f32 masters are rounded with the values", "comm/sharding/param_values.cpp",
           "(dtype() != DType::kF32 || is_rounded_in_place)", "dtype() != DType::kF32",
           ["comm.zero_np2 ZeroEightBits.AllRanksReadTheSameRoundedValues"]),
    Mutant("traffic: gradients are rounded to nearest", "comm/sharding/eight_bit_rule.h", "{.noise = noise(), ", "{.noise = nullptr, ",
           ["comm.zero_np2 ZeroEightBits.GradientsAreRoundedAtRandom"]),
]
