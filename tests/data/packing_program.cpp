// Packings for tests/data/test_packing_plans.py. A line of the input is a list: the context,
// whether documents are cut (1 or 0), the seed (-1: none), and the lengths of the documents. Its
// line of the output has each piece as START:LENGTH, with a "+" if it is cut, and a "|" after each
// window; then the cuts and the tokens of padding.
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "src/data/packing.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    tandem::Packing::Options options;
    int64_t seed = 0;
    in >> options.context >> options.cuts >> seed;
    if (seed >= 0) {
      options.seed = seed;
    }
    std::vector<int64_t> starts = {0};
    for (int64_t length = 0; in >> length;) {
      starts.push_back(starts.back() + length);
    }
    const tandem::Packing packing(std::move(starts), options);
    for (int64_t i = 0; i < packing.windows(); ++i) {
      for (const tandem::PackedPiece& piece : packing.window(i)) {
        std::cout << piece.start << ":" << piece.length << (piece.is_cut ? "+ " : " ");
      }
      std::cout << "| ";
    }
    std::cout << packing.cuts() << " " << packing.padding() << "\n";
  }
}
