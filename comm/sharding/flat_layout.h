// Where each parameter lies in the flat buffers of values, gradients and optimizer state, and how
// these are cut into buckets and rank parts. Pure integers, the same on every rank.
//
// A bucket is what is communicated at once: a block, or several small neighbours, or a part of a
// large block. What a block shares with others is a bucket of its own, and so is what is frozen. In
// a bucket the decayed parameters come first, so that what the optimizer updates has at most two
// runs of one set of hyper-parameters. Parameters start at multiples of 8 elements (16 bytes of
// a 16-bit type); in each group those whose size is no multiple of 8 come last, which saves most of
// the gaps. A bucket's end is padded to a multiple of ranks * 128 elements, so that all parts,
// and what ranks do of them, have the same size and alignment.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/autograd/parameter.h"
#include "src/core/range.h"

namespace tandem {

// One parameter.
struct Segment {
  std::string name;
  ParamId parameter = -1;  // position in forward order
  int64_t block = 0;
  int64_t bucket = 0;
  int64_t offset = 0;  // of its first element in the flat buffer
  int64_t count = 0;
  bool decay = false;
  bool frozen = false;
  bool shared = false;
};

struct Bucket {
  Range range;              // padding included
  int64_t first_plain = 0;  // [range.begin, first_plain) are decayed, the rest plain
  int64_t first_segment = 0, last_segment = 0;  // [first, last) of segments()
  int64_t first_block = 0;                      // the first one with parameters in this bucket
  bool shared = false;                          // of parameters that other blocks use too
  bool frozen = false;                          // of parameters that are not trained
  int64_t parameters() const { return last_segment - first_segment; }
};

// A run of elements of one parameter.
struct Extent {
  ParamId parameter = -1;
  int64_t in_parameter = 0;  // where it begins in the parameter
  int64_t in_flat = 0;       // ... in the flat buffer, or in the part of it that is spoken of
  int64_t count = 0;
};

class FlatLayout {
 public:
  struct Options {
    int ranks = 1;
    int parts = 0;             // that divide the ranks; 0: as many
    int64_t bucket_bytes = 0;  // of f32: buckets stay below, but for a single larger parameter
    bool split_blocks = true;  // large blocks may be cut between parameters
    bool merge_blocks = true;  // small neighbours may share a bucket
  };

  // Parameters are numbered in forward order: blocks, then parameters of a block. Throws
  // Error(kInternal) for an empty parameter, one that is listed twice, and two whose names have one
  // hash.
  FlatLayout(std::span<const BlockParameters> blocks, const Options& options);

  int64_t elements() const;          // of the flat buffer
  int64_t trained_elements() const;  // of buckets that are not frozen
  const std::vector<Segment>& segments() const { return segments_; }  // by offset
  // In forward order: those that are trained, and those that are frozen.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Segment& segment_of(ParamId parameter) const;
  int64_t blocks() const { return static_cast<int64_t>(buckets_of_.size()); }
  // The buckets with parameters that a block lists, in forward order.
  const std::vector<int64_t>& buckets_of(int64_t block) const { return buckets_of_[block]; }

  // Part `part` of a bucket; all parts of a bucket have the same size.
  Range part(const Bucket& bucket, int part) const;
  // What of the parameters lies in a range, in the order of the flat buffer. Padding belongs to
  // none.
  std::vector<Extent> extents(Range range) const;
  // What of a bucket belongs to no segment.
  std::vector<Range> gaps(const Bucket& bucket) const;

  // Equal for equal layouts: names, sizes, offsets, groups, buckets, ranks, parts. FNV-1a, 64 bits.
  uint64_t hash() const;
  std::string text() const;  // one line: hash and figures

 private:
  static constexpr int64_t kSegmentAlignment = 8;
  static constexpr int64_t kPartAlignment = 128;
  void add_bucket(std::vector<Segment> group);
  void index();

  int ranks_, parts_;
  std::vector<Segment> segments_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> segment_of_;               // by ParamId
  std::vector<std::vector<int64_t>> buckets_of_;  // by block
};

}  // namespace tandem
