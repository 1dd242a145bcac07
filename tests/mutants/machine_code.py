"""What the compiler makes of GPU kernels; needs nvcc and a disassembler."""
from table import Mutant

BUILD = "cuda"
MUTANTS = [
    Mutant("kernels: a pack is stored as the copy of a struct", "src/device/global.h",
           "store_words(data_ + i, std::bit_cast<uint4>(pack));", "*reinterpret_cast<Pack<Element>*>(data_ + i) = pack;",
           ["bench.packed_accesses"]),
]
