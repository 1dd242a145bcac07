// A group of collectives of the emulated NCCL, from the call to the end.
#pragma once

#include <nccl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/simt/libraries/nccl_wire.h"

namespace simt {

enum class Kind { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };

struct Operation {
  Operation(Kind kind_, const void* send_, void* receive_, size_t count_, ncclDataType_t type_,
            int root_ = -1)
      : kind(kind_),
        send(static_cast<const std::byte*>(send_)),
        receive(static_cast<std::byte*>(receive_)),
        count(count_),
        type(type_),
        root(root_) {}

  Kind kind;
  const std::byte* send;
  std::byte* receive;
  size_t count;  // elements of one rank
  ncclDataType_t type;
  int root;  // or the peer of a send or a receive; -1: none

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
};

// The number of calls of each communicator of a process so far. Unused places are empty.
struct CallCount {
  uint64_t communicator = 0;  // a hash of its unique id
  uint64_t calls = 0;
};
using CallCounts = std::array<CallCount, 16>;

// Collectives, or sends and receives, that start together, on one stream.
class Group {
 public:
  // `number`: among this communicator's groups.
  Group(cudaStream_t stream, uint64_t number, const CallCounts& others)
      : stream_(stream), number_(number), others_(others) {}
  cudaStream_t stream() const { return stream_; }
  bool begun() const { return phase_ != Phase::kQueued; }
  void add(const Operation& operation) { operations_.push_back(operation); }
  // Makes a group of the same operations, for a launch of the graph that has captured this one.
  std::shared_ptr<Group> again(uint64_t number, const CallCounts& others) const {
    auto group = std::make_shared<Group>(stream_, number, others);
    group->operations_ = operations_;
    return group;
  }

  // Goes on as far as the other ranks allow, and returns true when finished. It is a failure when
  // ranks call different collectives, or the communicators that they share in different orders.
  bool advance(Wire& wire, int ranks, int rank);
  // Names the collectives. Ranks must agree on this text, but may send to different ranks.
  std::string title() const;

 private:
  enum class Phase { kQueued, kIntroducing, kMoving };
  void introduce(Wire& wire, int ranks, int rank);
  void compare(int ranks) const;
  void move(Wire& wire, int ranks, int rank);
  std::vector<uint64_t> messages(int ranks) const;

  cudaStream_t stream_;
  uint64_t number_;
  CallCounts others_;
  Phase phase_ = Phase::kQueued;
  std::vector<Operation> operations_;
  Bytes own_introduction_, introductions_;
  std::vector<Bytes> own_, all_;  // by operation
};

[[noreturn]] void fail_nccl(const std::string& rule, const std::string& detail = "");

}  // namespace simt
