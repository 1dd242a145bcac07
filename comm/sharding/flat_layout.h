// Where each parameter lies in the flat buffers of values, gradients and optimizer state, and how
// these are cut into buckets and shards. Only integers, the same on every rank.
//
// A bucket is communicated at once: the parameters of a block, of several small neighbouring
// blocks, or some of a large block. Parameters that several blocks share have buckets of their own,
// and so have frozen parameters, and those that are cut: they live on fewer ranks than the others.
// In a bucket the parameters with weight decay come first, so that the optimizer updates at most
// two runs: with decay and without. If it needs whole matrices, these come before both, as a third
// run. Parameters start at multiples of 8 elements (16 bytes of a 16-bit type). In each run those
// whose size is not a multiple of 8 come last, which avoids most gaps. A bucket's end is padded to
// a multiple of ranks * 128 elements, so that all shards have the same size and alignment. On a GPU
// a parameter whose rows are classes has room after it for padding rows (stored_shape).
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
  int64_t count = 0;   // elements of the parameter
  int64_t stored = 0;  // and of the padding rows that follow it (stored_shape)
  bool decay = false;
  bool matrix = false;  // Parameter::matrix, with Options::matrices
  bool frozen = false;
  bool shared = false;
  bool cut = false;  // a piece of it is less than its logical tensor
};

struct Bucket {
  Range range;              // padding included
  int64_t first_other = 0;  // [range.begin, first_other): matrices
  int64_t first_plain = 0;  // [first_other, first_plain): with weight decay; the rest: without
  int64_t first_segment = 0, last_segment = 0;  // [first, last) of segments()
  int64_t first_block = 0;                      // the first one with parameters in this bucket
  bool shared = false;                          // its parameters are used by several blocks
  bool frozen = false;                          // its parameters are not trained
  bool cut = false;                             // its parameters are cut
  int64_t parameters() const { return last_segment - first_segment; }
};

class FlatLayout {
 public:
  struct Options {
    // The ranks that hold a bucket, and its shards: a divisor of `ranks`; 0: one per rank.
    struct Spread {
      int ranks = 1, parts = 0;
    };
    Spread whole{}, cut{};         // of parameters that are not cut, and of those that are
    Device device = Device::kCpu;  // that the buffers are on
    int64_t bucket_bytes = 0;      // limit, in f32; one parameter or uncut block may exceed it
    bool split_blocks = true;      // large blocks may be cut between parameters
    bool merge_blocks = true;      // small neighbouring blocks may share a bucket
    bool matrices = false;         // matrices have runs of their own
  };

  // Parameters are numbered in forward order: blocks, then parameters of a block. Throws
  // Error(kInternal) for an empty parameter, for one that is listed twice, and for two names with
  // the same hash.
  FlatLayout(std::span<const BlockParameters> blocks, const Options& options);

  int64_t elements() const;          // of the flat buffer
  int64_t trained_elements() const;  // of buckets that are not frozen
  const std::vector<Segment>& segments() const { return segments_; }  // by offset
  // Trained buckets are in forward order, and so are frozen ones.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Segment& segment_of(ParamId parameter) const;
  int64_t blocks() const { return static_cast<int64_t>(buckets_of_.size()); }
  // The buckets that hold a block's parameters, in forward order.
  const std::vector<int64_t>& buckets_of(int64_t block) const { return buckets_of_[block]; }

  // Shard number `part` of a bucket; all shards of a bucket have the same size.
  Range part(const Bucket& bucket, int part) const;
  // The runs of parameters inside a range, in the order of the flat buffer, without padding.
  // in_flat counts from element `begin` of the flat buffer.
  std::vector<Extent> extents(Range range, int64_t begin = 0) const;

  // Equal for equal layouts: names, stored sizes, offsets, buckets, ranks, shards. FNV-1a, 64 bits.
  uint64_t hash() const;
  std::string text() const;  // one line: hash and figures

 private:
  static constexpr int64_t kSegmentAlignment = 8;
  static constexpr int64_t kPartAlignment = 128;
  void add_bucket(std::vector<Segment> group);

  const Options::Spread& spread_of(bool cut) const { return cut ? cut_ : whole_; }

  Options::Spread whole_, cut_;
  std::vector<Segment> segments_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> segment_of_;               // by ParamId
  std::vector<std::vector<int64_t>> buckets_of_;  // by block
};

}  // namespace tandem
