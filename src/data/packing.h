// Windows of whole documents: a window holds several documents, and few documents are cut.
//
// Responsible for which tokens stand in which window: a pure function of where documents begin and
// of the options, computed, not stored. 1,024 documents are a pool, and each pool fills windows of
// its own. A document longer than a window is first cut into windows until the rest fits
// into one; these are the pool's first windows, and the rest is one of its pieces. Then windows are
// filled one after another: the largest piece that still fits is next, of equally long ones the
// last in the text (best fit). When none fits, the largest one is cut to fill the
// window, and what is cut off is a piece again. Only a pool's last window may be short.
//
// Without cuts a window ends when none fits, and a document longer than a window has only its last
// tokens.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/core/rng.h"

namespace tandem {

// Consecutive tokens of one document. Longer ones are greater; of equally long ones, the later.
struct PackedPiece {
  int64_t length = 0;
  int64_t start = 0;
  bool is_cut = false;  // the document goes on after the piece
  auto operator<=>(const PackedPiece&) const = default;
};

class Packing {
 public:
  struct Options {
    int64_t context = 0;  // a window has room for one more token, its last target
    // Pools are made of groups of 16 neighbouring documents in random order; none: as in the text.
    std::optional<uint64_t> seed{};
    bool cuts = true;
  };

  // `starts`: the first token of each document, and the number of tokens. Plans every pool once, on
  // all cores.
  Packing(std::vector<int64_t> starts, const Options& options);

  int64_t windows() const { return first_windows_.back(); }
  int64_t cuts() const { return cuts_; }  // of documents; without cuts, those that lose tokens
  int64_t padding() const { return padding_; }  // tokens of windows that no document fills

  // The pieces of a window. Plans its pool up to it, in about 0.15 milliseconds. Safe to call from
  // several threads at once.
  std::vector<PackedPiece> window(int64_t index) const;

 private:
  struct Plan {
    int64_t windows = 0, cuts = 0, tokens = 0;
    std::vector<PackedPiece> last{};
  };

  std::vector<PackedPiece> documents(int64_t pool) const;
  // The first windows of a pool, `limit` at most: how many, and the last of them.
  Plan plan(int64_t pool, int64_t limit) const;

  std::vector<int64_t> starts_;
  int64_t room_;
  bool may_cut_;
  std::optional<PhiloxKey> key_{};
  int64_t cuts_ = 0, padding_ = 0;
  std::vector<int64_t> first_windows_;  // of each pool, and the number of all: 8 bytes a pool
};

}  // namespace tandem
