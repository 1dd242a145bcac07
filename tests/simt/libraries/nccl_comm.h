// A communicator of the emulated NCCL, and the groups of all communicators of this process.
#pragma once

#include <nccl.h>

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/simt/libraries/nccl_group.h"

struct ncclComm {
  static ncclComm* make(const ncclUniqueId& id, int ranks, int rank, bool shares);

  enum State { kConnecting, kComparing, kReady, kFinalized, kOver };

  int ranks, rank;
  std::unique_ptr<simt::Wire> wire;
  std::vector<std::byte> id, ids = {};
  bool shares = false;    // its buffers with communicators that are split from it
  std::mutex mutex = {};  // never held while calling the emulator, whose lock is taken before it
  State state = kConnecting;
  std::atomic<uint64_t> calls = 0;
  std::shared_ptr<simt::Group> launching = {};  // called, not yet enqueued; only the host uses it
  std::deque<std::shared_ptr<simt::Group>> groups = {};  // enqueued, in the order of the calls

  // A split that is not finished.
  struct Split {
    struct Member {
      int color, key;
      ncclUniqueId id;  // the first member's is the new communicator's
    };
    ncclComm** into;
    simt::Bytes own, members = {};
  };
  std::unique_ptr<Split> split = {};

  void start_up();
  void finish_split();
  std::shared_ptr<simt::Group> again(const simt::Group& group);  // of a graph, at a launch
  void enqueue(const std::shared_ptr<simt::Group>& group);
  bool poll(const std::shared_ptr<simt::Group>& group);
};

namespace simt {

// The communicators of this process; their groups that are called and not finished, in the order of
// the calls.
class Launches {
 public:
  void open(ncclComm_t comm);
  void close(ncclComm_t comm);
  CallCounts calls();  // so far, of all communicators
  void add(const std::shared_ptr<Group>& group);
  void remove(const std::shared_ptr<Group>& group);
  // Whether a group may begin whose stream has reached it.
  bool may_begin(const std::shared_ptr<Group>& group);

 private:
  std::mutex mutex_;  // taken last
  std::vector<ncclComm_t> comms_;
  std::list<std::shared_ptr<Group>> groups_;
};
Launches& launches();

}  // namespace simt
