// `tandem`, of which rank 1 once calls another collective than the other ranks. The linker's --wrap
// leads all calls of two functions to planted ones: of redistribute() (flat_buffer.h), and of
// FlightLog::take_calls(), the last thing before a vote.
//
// DISAGREE_AT counts the calls of each from 1; DISAGREE says what becomes of this one:
//   kind, bytes   redistribute() calls another collective, or that of fewer bytes
//   none          redistribute() does nothing
//   quiet         before the vote there was a collective that ended, although of another kind
//   more          before the vote rank 1 calls one that no other rank calls
#include <cstdlib>
#include <string>

#include "comm/sharding/flat_buffer.h"
#include "src/commands/main.h"
#include "src/trace/flight_log.h"

// The names that the linker gives to what is called, and to what is called instead.
#define REDISTRIBUTE(prefix) \
  prefix##_ZN6tandem12redistributeERKNS_5GroupERKNS_10FlatBufferES5_RKSt8optionalINS_13BlockRoundingEE
#define TAKE_CALLS(prefix) prefix##_ZN6tandem9FlightLog10take_callsEv

namespace tandem {

extern "C" {
void REDISTRIBUTE(__real_)(const Group& group, const FlatBuffer& from, const FlatBuffer& to,
                           const EightBits& eight_bits);
void REDISTRIBUTE(__wrap_)(const Group& group, const FlatBuffer& from, const FlatBuffer& to,
                           const EightBits& eight_bits);
uint32_t TAKE_CALLS(__real_)(FlightLog* log);
uint32_t TAKE_CALLS(__wrap_)(FlightLog* log);
}

namespace {

const Group* the_group = nullptr;
Tensor the_tensor;

// The way, if it is the turn of this call; otherwise "".
std::string way_of(int call) {
  const char *at = std::getenv("DISAGREE_AT"), *way = std::getenv("DISAGREE");
  return at && way && call == std::atoi(at) ? way : "";
}

}  // namespace

void REDISTRIBUTE(__wrap_)(const Group& group, const FlatBuffer& from, const FlatBuffer& to,
                           const EightBits& eight_bits) {
  static int calls = 0;
  const std::string way = group.rank() == 1 ? way_of(++calls) : "";
  const int64_t n = to.data.elements() / group.size();
  the_group = &group;
  the_tensor = to.data;
  if (way == "kind") {
    group.all_gather(to.data.slice(n, n), to.data);
  } else if (way == "bytes") {
    group.all_reduce(to.data.slice(0, to.data.elements() / 2));
  } else if (way != "none") {
    REDISTRIBUTE(__real_)(group, from, to, eight_bits);
  }
}

uint32_t TAKE_CALLS(__wrap_)(FlightLog* log) {
  static int calls = 0;
  const std::string way = way_of(++calls);
  if (way == "quiet") {
    log->end(log->enqueue(4711, "this run", 1, log->rank() == 1 ? "all_gather" : "all_reduce", 64));
  } else if (way == "more" && log->rank() == 1) {
    the_group->all_reduce(the_tensor);
  }
  return TAKE_CALLS(__real_)(log);
}

}  // namespace tandem

int main(int argc, char** argv) { return tandem::main(argc, argv); }
