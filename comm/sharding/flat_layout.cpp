#include "comm/sharding/flat_layout.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "src/core/error.h"
#include "src/core/hash.h"
#include "src/core/mapped.h"

namespace tandem {

namespace {

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

bool is_cut(const Piece& piece) { return piece.slice.extent() != piece.slice.whole(); }

// Numbers the parameters and checks them.
std::vector<std::vector<Segment>> segments_by_block(std::span<const BlockParameters> blocks,
                                                    const FlatLayout::Options& options) {
  std::unordered_map<uint32_t, std::string> names;  // by the stream of their initial random numbers
  std::vector<std::vector<Segment>> result;
  ParamId next = 0;
  for (const BlockParameters& block : blocks) {
    std::vector<Segment>& segments = result.emplace_back();
    for (const Parameter* parameter : block.parameters) {
      const int64_t count = parameter->shape.elements();
      require(count > 0, "parameter ", parameter->name, " has no elements");
      int64_t in_pieces = 0;
      for (const Piece& piece : pieces_of(*parameter)) {
        in_pieces += piece.slice.elements();
        const auto entry = names.emplace(random_stream_of(piece.name), piece.name);
        require(entry.second, [&] {
          const std::string& other = entry.first->second;
          return other == piece.name
                     ? str("parameter ", piece.name, " is listed twice")
                     : str("parameters ", other, " and ", piece.name,
                           " have names of one hash, and would begin with the same random "
                           "numbers; rename one");
        });
      }
      require(in_pieces == count, "parameter ", parameter->name, " has ", count,
              " elements, its pieces ", in_pieces);
      segments.push_back({.name = parameter->name,
                          .parameter = next++,
                          .block = static_cast<int64_t>(result.size()) - 1,
                          .count = count,
                          .stored = stored_shape(*parameter, options.device).elements(),
                          .decay = parameter->decay,
                          .matrix = options.matrices && parameter->matrix,
                          .frozen = parameter->frozen,
                          .shared = parameter->shared(),
                          .cut = std::ranges::any_of(pieces_of(*parameter), is_cut)});
    }
  }
  return result;
}

int64_t bytes_of(std::span<const Segment> segments) {
  return sum_of(segments, &Segment::stored) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

FlatLayout::FlatLayout(std::span<const BlockParameters> blocks, const Options& options)
    : whole_(options.whole), cut_(options.cut), buckets_of_(blocks.size()) {
  for (Options::Spread* spread : {&whole_, &cut_}) {
    spread->parts = spread->parts > 0 ? spread->parts : spread->ranks;
    require(spread->ranks > 0 && spread->ranks % spread->parts == 0 && options.bucket_bytes >= 0,
            "FlatLayout: wrong options");
  }
  // Segments of the next buckets: trained, frozen, cut, both. None of these ends another's bucket.
  std::array<std::vector<Segment>, 4> groups;
  const auto close = [&](std::vector<Segment>& group) {
    if (!group.empty()) {
      add_bucket(std::exchange(group, {}));
    }
  };
  const auto take = [&](std::span<const Segment> more) {
    std::vector<Segment>& group = groups[more.front().frozen + 2 * more.front().cut];
    if (bytes_of(group) + bytes_of(more) > options.bucket_bytes || !options.merge_blocks) {
      close(group);
    }
    group.insert(group.end(), more.begin(), more.end());
  };
  for (const std::vector<Segment>& block : segments_by_block(blocks, options)) {
    for (int number = 0; number < 8; ++number) {  // shared ones first; of these trained ones first
      std::vector<Segment> kind;
      std::ranges::copy_if(block, std::back_inserter(kind), [&](const Segment& segment) {
        return 4 * !segment.shared + 2 * segment.frozen + segment.cut == number;
      });
      if (kind.empty()) {
        continue;
      }
      if (kind.front().shared) {
        std::ranges::for_each(groups, close);
        add_bucket(std::move(kind));
      } else if (!options.split_blocks || bytes_of(kind) <= options.bucket_bytes) {
        take(kind);
      } else {
        for (const Segment& segment : kind) {
          take({&segment, 1});
        }
      }
    }
  }
  std::ranges::for_each(groups, close);
  segment_of_.resize(segments_.size());
  for (size_t i = 0; i < segments_.size(); ++i) {
    segment_of_[segments_[i].parameter] = static_cast<int64_t>(i);
  }
}

void FlatLayout::add_bucket(std::vector<Segment> group) {
  std::ranges::stable_sort(group, {}, [](const Segment& segment) {
    return 4 * !segment.matrix + 2 * !segment.decay + (segment.stored % kSegmentAlignment != 0);
  });
  Bucket bucket;
  bucket.shared = group.front().shared;
  bucket.frozen = group.front().frozen;
  bucket.cut = group.front().cut;
  bucket.first_segment = static_cast<int64_t>(segments_.size());
  bucket.last_segment = bucket.first_segment + static_cast<int64_t>(group.size());
  bucket.first_block = std::ranges::min(group, {}, &Segment::block).block;
  int64_t offset = bucket.range.begin = elements();
  int64_t last_matrix = offset, last_decayed = offset;  // where these parameters end
  for (Segment& segment : group) {
    segment.bucket = static_cast<int64_t>(buckets_.size());
    segment.offset = offset;
    offset += round_up(segment.stored, kSegmentAlignment);
    last_matrix = segment.matrix ? offset : last_matrix;
    last_decayed = segment.matrix || segment.decay ? offset : last_decayed;
    std::vector<int64_t>& buckets = buckets_of_[segment.block];
    if (buckets.empty() || buckets.back() != segment.bucket) {
      buckets.push_back(segment.bucket);
    }
    segments_.push_back(std::move(segment));
  }
  const int64_t end = bucket.range.begin + round_up(offset - bucket.range.begin,
                                                    spread_of(bucket.cut).ranks * kPartAlignment);
  // The padding belongs to the last run.
  bucket.range.end = end;
  bucket.first_other = last_matrix == offset ? end : last_matrix;
  bucket.first_plain = last_decayed == offset ? end : last_decayed;
  buckets_.push_back(bucket);
}

int64_t FlatLayout::elements() const { return buckets_.empty() ? 0 : buckets_.back().range.end; }

int64_t FlatLayout::trained_elements() const {
  return sum_of(buckets_, [](const Bucket& b) { return b.frozen ? 0 : b.range.count(); });
}

const Segment& FlatLayout::segment_of(ParamId parameter) const {
  require(parameter >= 0 && static_cast<size_t>(parameter) < segment_of_.size(),
          "FlatLayout: no parameter ", parameter);
  return segments_[segment_of_[parameter]];
}

Range FlatLayout::part(const Bucket& bucket, int part) const {
  const int parts = spread_of(bucket.cut).parts;
  require(part >= 0 && part < parts, "FlatLayout: no shard ", part);
  const int64_t size = bucket.range.count() / parts;
  return {bucket.range.begin + part * size, bucket.range.begin + (part + 1) * size};
}

std::vector<Extent> FlatLayout::extents(Range range, int64_t begin) const {
  std::vector<Extent> result;
  auto it = std::ranges::upper_bound(segments_, range.begin, {}, &Segment::offset);
  if (it != segments_.begin()) {
    --it;
  }
  for (; it != segments_.end() && it->offset < range.end; ++it) {
    const Range common = intersection(range, {it->offset, it->offset + it->count});
    if (common.count() > 0) {
      result.push_back({.parameter = it->parameter,
                        .in_flat = common.begin - begin,
                        .count = common.count(),
                        .in_parameter = common.begin - it->offset});
    }
  }
  return result;
}

uint64_t FlatLayout::hash() const {
  Fnv1a<uint64_t> hash;
  for (const int number : {whole_.ranks, whole_.parts, cut_.ranks, cut_.parts}) {
    hash.add(number);
  }
  for (const Segment& segment : segments_) {
    hash.add(static_cast<int64_t>(segment.name.size()));
    hash.add(segment.name);
    for (int64_t number :
         {int64_t{segment.parameter}, segment.bucket, segment.offset,
          segment.cut ? 0 : segment.count,  // slices need not be equal
          segment.stored, int64_t{segment.decay}, int64_t{segment.matrix}, int64_t{segment.frozen},
          int64_t{segment.shared}, int64_t{segment.cut}}) {
      hash.add(number);
    }
  }
  for (const Bucket& bucket : buckets_) {
    hash.add(bucket.range.end);
    hash.add(bucket.first_other);
    hash.add(bucket.first_plain);
  }
  return hash.value();
}

std::string FlatLayout::text() const {
  return str(std::hex, hash(), std::dec, ": ", segments_.size(), " parameters, ", buckets_.size(),
             " buckets, ", elements(), " elements");
}

}  // namespace tandem
