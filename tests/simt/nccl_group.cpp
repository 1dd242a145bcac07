#include "tests/simt/nccl_group.h"

#include <climits>
#include <cstring>
#include <functional>

#include "src/core/float16.h"
#include "tests/simt/simt.h"

namespace simt {

namespace {

constexpr size_t kTitleBytes = 256;
constexpr const char* kNames[] = {"all_reduce", "reduce", "reduce_scatter", "all_gather",
                                  "broadcast"};

struct Type {
  size_t bytes;
  const char* name;
};

Type describe(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return {1, "u8"};
    case ncclFloat16:
      return {2, "fp16"};
    case ncclBfloat16:
      return {2, "bf16"};
    case ncclInt32:
      return {4, "i32"};
    case ncclFloat32:
      return {4, "f32"};
    case ncclInt64:
      return {8, "i64"};
    case ncclFloat64:
      return {8, "f64"};
  }
  fail_nccl("data type that is not emulated", std::to_string(type));
}

size_t size_of(ncclDataType_t type) { return describe(type).bytes; }

std::string text(const Operation& operation) {
  return std::string(kNames[static_cast<int>(operation.kind)]) + " of " +
         std::to_string(operation.count) + " x " + describe(operation.type).name +
         (operation.root >= 0 ? " with root " + std::to_string(operation.root) : "");
}

using Bytes = Group::Bytes;
struct Span {
  const std::byte* data;
  size_t bytes;
};

// What a rank reads and writes; nothing where it only gives or only takes.
Span source(const Operation& o, int ranks, int rank) {
  const size_t bytes = o.count * size_of(o.type);
  const bool gives = o.kind != Kind::kBroadcast || rank == o.root;
  const size_t parts = o.kind == Kind::kReduceScatter ? static_cast<size_t>(ranks) : 1;
  return {o.send, gives ? bytes * parts : 0};
}
Span target(const Operation& o, int ranks, int rank) {
  const size_t bytes = o.count * size_of(o.type);
  const bool takes = o.kind != Kind::kReduce || rank == o.root;
  const size_t parts = o.kind == Kind::kAllGather ? static_cast<size_t>(ranks) : 1;
  return {o.receive, takes ? bytes * parts : 0};
}

// Live device memory, and in place or apart.
void check_buffers(const Operation& o, int ranks, int rank) {
  const Span from = source(o, ranks, rank), to = target(o, ranks, rank);
  check_range(from.data, from.bytes, ("send buffer of NCCL's " + text(o)).c_str());
  check_range(to.data, to.bytes, ("receive buffer of NCCL's " + text(o)).c_str());
  const size_t part = o.count * size_of(o.type) * static_cast<size_t>(rank);
  const bool in_place = o.kind == Kind::kAllGather       ? from.data == to.data + part
                        : o.kind == Kind::kReduceScatter ? to.data == from.data + part
                                                         : from.data == to.data;
  const bool apart = from.bytes == 0 || to.bytes == 0 || from.data + from.bytes <= to.data ||
                     to.data + to.bytes <= from.data;
  if (!in_place && !apart) {
    fail_nccl("buffers overlap and are not in place", text(o));
  }
}

// The sum over ranks of the elements from `first` on.
template <class T, class Sum>
void add(const Bytes& all, size_t bytes_of_rank, size_t first, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) {
    Sum sum = 0;
    for (size_t begin = 0; begin < all.size(); begin += bytes_of_rank) {
      T value;
      std::memcpy(static_cast<void*>(&value), &all[begin + (first + i) * sizeof(T)], sizeof value);
      sum += static_cast<Sum>(value);
    }
    const T rounded = static_cast<T>(sum);
    std::memcpy(to + i * sizeof(T), &rounded, sizeof rounded);
  }
}

// Writes what this rank gets out of what all ranks gave.
void finish(const Operation& o, const Bytes& all, int ranks, int rank) {
  const Span to = target(o, ranks, rank);
  const size_t bytes_of_rank = all.size() / static_cast<size_t>(ranks);
  if (to.bytes == 0) {
    return;
  }
  if (o.kind == Kind::kAllGather || o.kind == Kind::kBroadcast) {
    const size_t begin = o.kind == Kind::kBroadcast ? bytes_of_rank * o.root : 0;
    std::memcpy(o.receive, &all[begin], to.bytes);
    return;
  }
  const size_t first = o.kind == Kind::kReduceScatter ? o.count * rank : 0;
  switch (o.type) {
    case ncclFloat32:
      return add<float, float>(all, bytes_of_rank, first, o.count, o.receive);
    case ncclFloat64:
      return add<double, double>(all, bytes_of_rank, first, o.count, o.receive);
    case ncclFloat16:
      return add<tandem::Fp16, float>(all, bytes_of_rank, first, o.count, o.receive);
    case ncclBfloat16:
      return add<tandem::Bf16, float>(all, bytes_of_rank, first, o.count, o.receive);
    default:
      fail_nccl("sums of this type are not emulated", text(o));
  }
}

}  // namespace

void fail_nccl(const std::string& rule, const std::string& detail) {
  fail("NCCL: " + rule, detail);
}

bool Group::advance(Wire& wire, int ranks, int rank) {
  switch (phase_) {
    case Phase::kQueued:
      introduce(wire);
      phase_ = Phase::kIntroducing;
      return false;
    case Phase::kIntroducing:
      if (wire.arrived()) {
        compare(ranks);
        send(wire, ranks, rank);
        phase_ = Phase::kMoving;
      }
      return false;
    case Phase::kMoving:
      if (!wire.arrived()) {
        return false;
      }
      for (size_t i = 0; i < operations_.size(); ++i) {
        finish(operations_[i], all_[i], ranks, rank);
      }
      return true;
  }
  return true;
}

// A title of fixed length says which collectives these are.
void Group::introduce(Wire& wire) {
  std::string texts;
  for (const Operation& operation : operations_) {
    texts += text(operation) + ";";
  }
  std::string title = "call " + std::to_string(number_) + ", " + text(operations_[0]);
  if (operations_.size() > 1) {
    title += " and " + std::to_string(operations_.size() - 1) + " more (hash " +
             std::to_string(std::hash<std::string>{}(texts)) + ")";
  }
  title.resize(kTitleBytes);
  own_title_.resize(kTitleBytes);
  std::memcpy(own_title_.data(), title.data(), kTitleBytes);
  wire.gather(own_title_, titles_);
}

void Group::compare(int ranks) const {
  const auto title = [&](int rank) {
    return std::string(reinterpret_cast<const char*>(&titles_[kTitleBytes * rank]));
  };
  for (int rank = 1; rank < ranks; ++rank) {
    if (title(rank) != title(0)) {
      fail_nccl("ranks call different collectives",
                "rank 0: " + title(0) + "; rank " + std::to_string(rank) + ": " + title(rank));
    }
  }
}

// Takes the input out of device memory and sends it to everybody.
void Group::send(Wire& wire, int ranks, int rank) {
  own_.resize(operations_.size());
  all_.resize(operations_.size());
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& o = operations_[i];
    check_buffers(o, ranks, rank);
    const Span from = source(o, ranks, rank);
    own_[i].assign(from.data, from.data + from.bytes);
    if (o.kind == Kind::kBroadcast) {
      own_[i].resize(o.count * size_of(o.type));  // the others' is ignored
    }
    if (own_[i].size() > INT_MAX) {
      fail_nccl("more data than is emulated", text(o));
    }
    wire.gather(own_[i], all_[i]);
  }
}

}  // namespace simt
