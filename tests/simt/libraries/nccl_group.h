// A group of collectives of the emulated NCCL, from the call to the end.
#pragma once

#include <nccl.h>

#include <cstdint>
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

// Collectives, or sends and receives, that start together, on one stream.
class Group {
 public:
  Group(cudaStream_t stream, uint64_t number) : stream_(stream), number_(number) {}
  cudaStream_t stream() const { return stream_; }
  void add(const Operation& operation) { operations_.push_back(operation); }

  // Goes on as far as the other ranks allow, and returns true when finished. It is a failure when
  // ranks call different collectives.
  bool advance(Wire& wire, int ranks, int rank);

 private:
  enum class Phase { kQueued, kIntroducing, kMoving };
  void introduce(Wire& wire, int ranks, int rank);
  void compare(int ranks) const;
  void move(Wire& wire, int ranks, int rank);
  std::string title() const;
  std::vector<uint64_t> messages(int ranks) const;

  cudaStream_t stream_;
  uint64_t number_;  // counts this communicator's groups
  Phase phase_ = Phase::kQueued;
  std::vector<Operation> operations_;
  Bytes own_introduction_, introductions_;
  std::vector<Bytes> own_, all_;  // by operation
};

[[noreturn]] void fail_nccl(const std::string& rule, const std::string& detail = "");

}  // namespace simt
