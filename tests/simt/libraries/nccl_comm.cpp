#include "tests/simt/libraries/nccl_comm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace simt {

namespace {

bool keeps_order() {
  const char* set = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return set && std::atoi(set) != 0;
}

}  // namespace

Launches& launches() {
  static Launches all;
  return all;
}

void Launches::open(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
  if (comms_.size() > std::tuple_size_v<CallCounts>) {
    fail_nccl("more communicators of a process than are emulated");
  }
}

void Launches::close(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  std::erase(comms_, comm);
  for (const std::shared_ptr<Group>& group : comm->groups) {
    std::erase(groups_, group);
  }
}

CallCounts Launches::calls() {
  const std::lock_guard lock(mutex_);
  CallCounts counts{};
  for (size_t i = 0; i < comms_.size(); ++i) {
    const std::string_view id(reinterpret_cast<const char*>(comms_[i]->id.data()),
                              comms_[i]->id.size());
    counts[i] = {std::hash<std::string_view>{}(id), comms_[i]->calls};
  }
  return counts;
}

void Launches::add(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void Launches::remove(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, group);
}

bool Launches::may_begin(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Group>& earlier : groups_) {
    if (earlier == group) {
      break;
    }
    if (!keeps_order()) {
      fail_nccl("nothing orders groups of two communicators",
                earlier->title() + "; " + group->title());
    }
    if (!earlier->begun()) {
      return false;
    }
  }
  return true;
}

}  // namespace simt

ncclComm* ncclComm::make(const ncclUniqueId& id, int ranks, int rank, bool shares) {
  const auto* bytes = reinterpret_cast<const std::byte*>(id.internal);
  auto* comm = new ncclComm{.ranks = ranks,
                            .rank = rank,
                            .wire = simt::connect(id, ranks, rank),
                            .id = {bytes, bytes + sizeof id.internal},
                            .shares = shares};
  simt::launches().open(comm);
  return comm;
}

// Connects, and checks that all ranks use the same unique id.
void ncclComm::start_up() {
  if (state == kConnecting && wire->connected()) {
    simt::gather(*wire, ranks, rank, id, ids);
    state = kComparing;
  }
  if (state == kComparing && wire->arrived()) {
    for (int r = 0; r < ranks; ++r) {
      if (std::memcmp(&ids[id.size() * r], id.data(), id.size()) != 0) {
        simt::fail_nccl("ranks start with different unique ids",
                        "ranks " + std::to_string(r) + " and " + std::to_string(rank));
      }
    }
    state = kReady;
  }
}

// Once all ranks have come, makes the new communicator, of the ranks with one color by key and
// rank.
void ncclComm::finish_split() {
  if (!split || !wire->arrived()) {
    return;
  }
  const auto* all = reinterpret_cast<const Split::Member*>(split->members.data());
  std::vector<int> members;
  for (int other = 0; other < ranks; ++other) {
    if (all[other].color == all[rank].color) {
      members.push_back(other);
    }
  }
  std::ranges::stable_sort(members, {}, [all](int member) { return all[member].key; });
  const int place = static_cast<int>(std::ranges::find(members, rank) - members.begin());
  const int size = static_cast<int>(members.size());
  *split->into = make(all[members[0]].id, size, place, shares);
  split.reset();
}

std::shared_ptr<simt::Group> ncclComm::again(const simt::Group& group) {
  const uint64_t number = ++calls;
  return group.again(number, simt::launches().calls());
}

void ncclComm::enqueue(const std::shared_ptr<simt::Group>& group) {
  const std::lock_guard lock(mutex);
  groups.push_back(group);
  simt::launches().add(group);
}

// Groups run one after another in the order of the calls, even on different streams.
bool ncclComm::poll(const std::shared_ptr<simt::Group>& group) {
  const std::lock_guard lock(mutex);
  if (state == kOver) {
    return true;  // aborted; the buffers of unfinished MPI calls are kept
  }
  if (groups.front() != group || (!group->begun() && !simt::launches().may_begin(group)) ||
      !group->advance(*wire, ranks, rank)) {
    return false;
  }
  groups.pop_front();
  simt::launches().remove(group);
  return true;
}
