#include "comm/flat_layout.h"

#include <algorithm>
#include <unordered_set>

#include "src/core/error.h"

namespace tandem {

namespace {

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

class Fnv {
 public:
  void add(int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<uint64_t>(number) >> shift & 0xff);
    }
  }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    for (unsigned char c : text) {
      add_byte(c);
    }
  }
  uint64_t value() const { return value_; }

 private:
  void add_byte(uint64_t byte) { value_ = (value_ ^ byte) * 1099511628211u; }
  uint64_t value_ = 14695981039346656037u;
};

// Numbers the parameters and checks them.
std::vector<std::vector<Segment>> segments_by_block(std::span<const BlockParameters> blocks) {
  std::unordered_set<std::string> names;
  std::vector<std::vector<Segment>> result;
  ParamId next = 0;
  for (const BlockParameters& block : blocks) {
    std::vector<Segment>& segments = result.emplace_back();
    for (const Parameter* parameter : block.parameters) {
      const int64_t count = parameter->shape.elements();
      require(count > 0, [&] { return str("parameter ", parameter->name, " has no elements"); });
      require(names.insert(parameter->name).second,
              [&] { return str("parameter ", parameter->name, " is listed twice"); });
      segments.push_back({.name = parameter->name,
                          .parameter = next++,
                          .count = count,
                          .decay = parameter->decay});
    }
  }
  return result;
}

int64_t bytes_of(const std::vector<Segment>& segments) {
  int64_t count = 0;
  for (const Segment& segment : segments) {
    count += segment.count;
  }
  return count * static_cast<int64_t>(sizeof(float));
}

}  // namespace

Range intersection(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

FlatLayout::FlatLayout(std::span<const BlockParameters> blocks, const Options& options)
    : ranks_(options.ranks) {
  require(options.ranks > 0 && options.bucket_bytes >= 0, "FlatLayout: wrong options");
  std::vector<Segment> group;
  const auto take = [&](const std::vector<Segment>& more) {
    if (!group.empty() && bytes_of(group) + bytes_of(more) > options.bucket_bytes) {
      add_bucket(std::move(group));
      group.clear();
    }
    group.insert(group.end(), more.begin(), more.end());
  };
  for (const std::vector<Segment>& block : segments_by_block(blocks)) {
    if (!options.split_blocks || bytes_of(block) <= options.bucket_bytes) {
      take(block);
      continue;
    }
    for (const Segment& segment : block) {
      take({segment});
    }
  }
  if (!group.empty()) {
    add_bucket(std::move(group));
  }
  segment_of_.resize(segments_.size());
  for (size_t i = 0; i < segments_.size(); ++i) {
    segment_of_[segments_[i].parameter] = static_cast<int64_t>(i);
  }
}

void FlatLayout::add_bucket(std::vector<Segment> group) {
  std::ranges::stable_sort(group, {}, [](const Segment& segment) {
    return 2 * !segment.decay + (segment.count % kSegmentAlignment != 0);
  });
  Bucket bucket;
  bucket.range.begin = elements();
  bucket.parameters = static_cast<int64_t>(group.size());
  int64_t offset = bucket.range.begin;
  bucket.first_plain = offset;
  for (Segment& segment : group) {
    segment.bucket = static_cast<int64_t>(buckets_.size());
    segment.offset = offset;
    offset += round_up(segment.count, kSegmentAlignment);
    if (segment.decay) {
      bucket.first_plain = offset;
    }
    segments_.push_back(std::move(segment));
  }
  bucket.range.end =
      bucket.range.begin + round_up(offset - bucket.range.begin, ranks_ * kPartAlignment);
  if (segments_.back().decay) {
    bucket.first_plain = bucket.range.end;  // the padding belongs to the only group
  }
  buckets_.push_back(bucket);
}

int64_t FlatLayout::elements() const { return buckets_.empty() ? 0 : buckets_.back().range.end; }

const Segment& FlatLayout::segment_of(ParamId parameter) const {
  require(parameter >= 0 && static_cast<size_t>(parameter) < segment_of_.size(),
          [&] { return str("FlatLayout: no parameter ", parameter); });
  return segments_[segment_of_[parameter]];
}

Range FlatLayout::part(const Bucket& bucket, int rank) const {
  require(rank >= 0 && rank < ranks_, [&] { return str("FlatLayout: no rank ", rank); });
  const int64_t size = bucket.range.count() / ranks_;
  return {bucket.range.begin + rank * size, bucket.range.begin + (rank + 1) * size};
}

std::vector<SegmentPiece> FlatLayout::pieces(Range range) const {
  std::vector<SegmentPiece> result;
  auto it = std::ranges::upper_bound(segments_, range.begin, {}, &Segment::offset);
  if (it != segments_.begin()) {
    --it;
  }
  for (; it != segments_.end() && it->offset < range.end; ++it) {
    const Range common = intersection(range, {it->offset, it->offset + it->count});
    if (common.count() > 0) {
      result.push_back({.segment = it - segments_.begin(),
                        .segment_offset = common.begin - it->offset,
                        .offset = common.begin,
                        .count = common.count()});
    }
  }
  return result;
}

uint64_t FlatLayout::hash() const {
  Fnv hash;
  hash.add(ranks_);
  for (const Segment& segment : segments_) {
    hash.add(segment.name);
    for (int64_t number : {int64_t{segment.parameter}, segment.bucket, segment.offset,
                           segment.count, int64_t{segment.decay}}) {
      hash.add(number);
    }
  }
  for (const Bucket& bucket : buckets_) {
    hash.add(bucket.range.end);
    hash.add(bucket.first_plain);
  }
  return hash.value();
}

std::string FlatLayout::text() const {
  return str(std::hex, hash(), std::dec, ": ", segments_.size(), " parameters, ", buckets_.size(),
             " buckets, ", elements(), " elements");
}

}  // namespace tandem
