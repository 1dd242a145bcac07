#include "tests/simt/libraries/nccl_group.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

#include "tests/simt/simt.h"

namespace simt {

namespace {

constexpr size_t kTitleBytes = 256, kHeadBytes = kTitleBytes + sizeof(CallCounts);
constexpr const char* kNames[] = {"all_reduce", "reduce", "reduce_scatter", "all_gather",
                                  "broadcast",  "send",   "receive"};

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
         (operation.is_message() ? " with rank " + std::to_string(operation.root)
          : operation.root >= 0  ? " with root " + std::to_string(operation.root)
                                 : "");
}

struct Span {
  const std::byte* data;
  size_t bytes;
};

// The memory that a rank reads and that it writes; empty if it only receives or only sends.
Span source(const Operation& o, int ranks, int rank) {
  const size_t bytes = o.count * size_of(o.type);
  const bool gives = o.kind != Kind::kReceive && (o.kind != Kind::kBroadcast || rank == o.root);
  const size_t parts = o.kind == Kind::kReduceScatter ? static_cast<size_t>(ranks) : 1;
  return {o.send, gives ? bytes * parts : 0};
}
Span target(const Operation& o, int ranks, int rank) {
  const size_t bytes = o.count * size_of(o.type);
  const bool takes = o.kind != Kind::kSend && (o.kind != Kind::kReduce || rank == o.root);
  const size_t parts = o.kind == Kind::kAllGather ? static_cast<size_t>(ranks) : 1;
  return {o.receive, takes ? bytes * parts : 0};
}

// Checks that both buffers are live device memory, and that they are equal or do not overlap.
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

// Whether two ranks have called a communicator that they share a different number of times.
bool in_other_order(const CallCounts& one, const CallCounts& other) {
  return std::ranges::any_of(one, [&](const CallCount& a) {
    return a.communicator != 0 && std::ranges::any_of(other, [&](const CallCount& b) {
             return b.communicator == a.communicator && b.calls != a.calls;
           });
  });
}

// Adds over ranks the elements from `first` on.
template <class T>
void add(const Bytes& all, size_t bytes_of_rank, size_t first, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) {
    T sum = 0;
    for (size_t begin = 0; begin < all.size(); begin += bytes_of_rank) {
      T value;
      std::memcpy(&value, &all[begin + (first + i) * sizeof(T)], sizeof value);
      sum += value;
    }
    std::memcpy(to + i * sizeof(T), &sum, sizeof sum);
  }
}

// Writes this rank's result, computed from the inputs of all ranks.
void finish(const Operation& o, const Bytes& all, int ranks, int rank) {
  const Span to = target(o, ranks, rank);
  if (o.is_message()) {
    std::copy(all.begin(), all.end(), o.receive);  // for a send, `all` is empty
    return;
  }
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
      return add<float>(all, bytes_of_rank, first, o.count, o.receive);
    case ncclFloat64:
      return add<double>(all, bytes_of_rank, first, o.count, o.receive);
    case ncclInt64:  // wraps around
      return add<uint64_t>(all, bytes_of_rank, first, o.count, o.receive);
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
      introduce(wire, ranks, rank);
      phase_ = Phase::kIntroducing;
      return false;
    case Phase::kIntroducing:
      if (wire.arrived()) {
        compare(ranks);
        move(wire, ranks, rank);
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

std::string Group::title() const {
  std::string texts, first;
  int collectives = 0;
  for (const Operation& operation : operations_) {
    if (!operation.is_message()) {
      first = collectives++ == 0 ? text(operation) : first;
      texts += text(operation) + ";";
    }
  }
  if (collectives > 0 && collectives < static_cast<int>(operations_.size())) {
    fail_nccl("collectives in one group with sends or receives are not emulated");
  }
  std::string title =
      "call " + std::to_string(number_) + ", " + (collectives == 0 ? "sends and receives" : first);
  if (collectives > 1) {
    title += " and " + std::to_string(collectives - 1) + " more (hash " +
             std::to_string(std::hash<std::string>{}(texts)) + ")";
  }
  return title;
}

// Numbers that describe the messages to and from each rank; they differ if the messages differ.
std::vector<uint64_t> Group::messages(int ranks) const {
  std::vector<uint64_t> marks(2 * static_cast<size_t>(ranks), 0);
  for (const Operation& o : operations_) {
    if (o.is_message()) {
      uint64_t& mark = marks[static_cast<size_t>(o.root + (o.kind == Kind::kSend ? 0 : ranks))];
      mark = mark * 1000003 + o.count * 16 + static_cast<uint64_t>(o.type);
    }
  }
  return marks;
}

// Exchanges introductions, which have a fixed length: the title, the calls of other communicators,
// then the messages.
void Group::introduce(Wire& wire, int ranks, int rank) {
  std::string words = title();
  words.resize(kTitleBytes);
  const std::vector<uint64_t> marks = messages(ranks);
  own_introduction_.resize(kHeadBytes + marks.size() * sizeof(uint64_t));
  std::memcpy(own_introduction_.data(), words.data(), kTitleBytes);
  std::memcpy(own_introduction_.data() + kTitleBytes, &others_, sizeof others_);
  std::memcpy(own_introduction_.data() + kHeadBytes, marks.data(), marks.size() * sizeof(uint64_t));
  gather(wire, ranks, rank, own_introduction_, introductions_);
}

void Group::compare(int ranks) const {
  const auto introduction = [&](int rank) {
    return &introductions_[own_introduction_.size() * static_cast<size_t>(rank)];
  };
  const auto title_of = [&](int rank) {
    return std::string(reinterpret_cast<const char*>(introduction(rank)));
  };
  const auto mark = [&](int rank, int index) {
    uint64_t value = 0;
    std::memcpy(&value, introduction(rank) + kHeadBytes + index * sizeof value, sizeof value);
    return value;
  };
  const auto calls_of = [&](int rank) {
    CallCounts counts;
    std::memcpy(&counts, introduction(rank) + kTitleBytes, sizeof counts);
    return counts;
  };
  for (int rank = 0; rank < ranks; ++rank) {
    if (title_of(rank) != title_of(0)) {
      fail_nccl(
          "ranks call different collectives",
          "rank 0: " + title_of(0) + "; rank " + std::to_string(rank) + ": " + title_of(rank));
    }
    for (int other = 0; other < ranks; ++other) {
      if (in_other_order(calls_of(rank), calls_of(other))) {
        fail_nccl("ranks call communicators in different orders",
                  "ranks " + std::to_string(other) + " and " + std::to_string(rank) + ", at " +
                      title_of(rank));
      }
      if (mark(rank, other) != mark(other, ranks + rank)) {
        fail_nccl("a rank sends other messages than the receiver expects",
                  title_of(rank) + ": from rank " + std::to_string(rank) + " to rank " +
                      std::to_string(other));
      }
    }
  }
}

// Copies the input from device memory and sends it to the ranks that need it.
void Group::move(Wire& wire, int ranks, int rank) {
  own_.resize(operations_.size());
  all_.resize(operations_.size());
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& o = operations_[i];
    check_buffers(o, ranks, rank);
    const Span from = source(o, ranks, rank);
    own_[i].assign(from.data, from.data + from.bytes);
    if (o.kind == Kind::kBroadcast) {
      own_[i].resize(o.count * size_of(o.type));  // other ranks' values are ignored
    }
    if (own_[i].size() > INT_MAX) {
      fail_nccl("more data than is emulated", text(o));
    }
    if (o.kind == Kind::kSend) {
      wire.send(o.root, own_[i]);
    } else if (o.kind == Kind::kReceive) {
      all_[i].resize(o.count * size_of(o.type));
      wire.receive(o.root, all_[i].data(), all_[i].size());
    } else {
      gather(wire, ranks, rank, own_[i], all_[i]);
    }
  }
}

}  // namespace simt
