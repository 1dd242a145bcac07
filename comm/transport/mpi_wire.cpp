#include "comm/transport/mpi_wire.h"

#include <chrono>
#include <mutex>
#include <thread>

#include "comm/transport/deadline.h"
#include "comm/transport/patience.h"
#include "src/core/error.h"

namespace tandem {

namespace {

constexpr int kKinds = 10;
constexpr const char* kNames[kKinds] = {
    "all_reduce",        "reduce_scatter",    "all_gather", "all_to_all", "sum",
    "broadcast of text", "gathering of text", "barrier",    "split",      "clock"};

// Every MPI allows tags up to 32767. A collective's number modulo kNumbers and its kind use the
// tags below kNumbers * kKinds; the roll call uses the last two.
constexpr int kAskTag = 32766, kAnswerTag = 32767;
constexpr int kNumbers = kAskTag / kKinds;

constexpr double kAnswerAfter_s = 0.1, kRollCall_s = 1;

// MPI may allow only one call at a time (MPI_THREAD_SERIALIZED). None of those below waits.
std::mutex& turns() {
  static std::mutex turn;
  return turn;
}

void check(int code, const std::string& what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  int error_class = MPI_ERR_OTHER;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &error_class);
  // These classes mean that this program made a wrong call; others may be the machine's fault.
  const bool wrong_call = error_class == MPI_ERR_TRUNCATE || error_class == MPI_ERR_COUNT ||
                          error_class == MPI_ERR_RANK || error_class == MPI_ERR_TAG ||
                          error_class == MPI_ERR_BUFFER || error_class == MPI_ERR_COMM ||
                          error_class == MPI_ERR_TYPE || error_class == MPI_ERR_ARG;
  fail(wrong_call ? ExitCode::kInternal : ExitCode::kTemporary,
       str(what, ": ", text, wrong_call ? flight_verdict_of_job().text : ""));
}

// --- The roll call: when a peer is silent, this rank asks all ranks of the job who waits in a
// --- collective, because the peer may itself wait in another group. Errors count as silence.

// Receives one empty message with this tag if there is one; returns its sender, or -1.
int taken(int tag) {
  const std::lock_guard turn(turns());
  int there = 0;
  MPI_Status status{};
  MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &status);
  if (!there) {
    return -1;
  }
  MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  return status.MPI_SOURCE;
}

void send_empty(int to, int tag) {
  const std::lock_guard turn(turns());
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(nullptr, 0, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
  MPI_Request_free(&request);
}

void answer_roll_call() {
  for (int asker = taken(kAskTag); asker >= 0; asker = taken(kAskTag)) {
    send_empty(asker, kAnswerTag);
  }
}

// Asks all ranks, and returns those that do not wait in a collective.
std::string absent_ranks() {
  int self = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &self);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<bool> present(static_cast<size_t>(size), false);
  present[self] = true;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != self) {
      send_empty(peer, kAskTag);
    }
  }
  for (const Patience patience; patience.waited_s() < kRollCall_s;) {
    answer_roll_call();
    for (int peer = taken(kAnswerTag); peer >= 0; peer = taken(kAnswerTag)) {
      present[peer] = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string absent;
  for (int peer = 0; peer < size; ++peer) {
    if (!present[peer]) {
      absent += str(absent.empty() ? "" : ", ", peer);
    }
  }
  return absent;
}

}  // namespace

std::string_view name_of(MpiKind kind) { return kNames[static_cast<int>(kind)]; }

MpiWire::MpiWire(MPI_Comm comm, Ranks group, const std::atomic<double>& timeout_s)
    : comm_(comm), group_(std::move(group)), timeout_s_(timeout_s) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
}

// Nothing else in this program sends messages with these tags, so MPI_COMM_WORLD itself can be
// used.
std::unique_ptr<MpiWire> MpiWire::of_the_job(const std::atomic<double>& timeout_s) {
  int rank = 0, size = 1;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return std::make_unique<MpiWire>(MPI_COMM_WORLD, Ranks(rank, size), timeout_s);
}

std::unique_ptr<MpiWire> MpiWire::split(std::span<const int> colors) const {
  Ranks part = group_.split(colors);
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_split(comm_, colors[rank()], rank(), &comm), "MPI_Comm_split");
  return std::make_unique<MpiWire>(comm, std::move(part), timeout_s_);
}

void MpiWire::begin(MpiKind kind, Traffic traffic, int64_t bytes) {
  kind_ = kind;
  traffic_ = traffic;
  bytes_ = bytes;
  ++number_;
}

Transport::Ticket MpiWire::send(int to, const std::byte* data, int64_t bytes) {
  Message message{.peer = to, .bytes = bytes, .outgoing = true};
  const std::lock_guard turn(turns());
  check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag(), comm_, &message.request),
        str(place(), ": sending to ", other(message)));
  Sent& sent = sent_[static_cast<size_t>(traffic_)];
  (group_.is_away(to) ? sent.between : sent.inside) += bytes;
  return keep(message);
}

Transport::Ticket MpiWire::receive(int from, std::byte* data, int64_t bytes) {
  Message message{.peer = from, .bytes = bytes, .outgoing = false};
  const std::lock_guard turn(turns());
  check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag(), comm_, &message.request),
        str(place(), ": receiving from ", other(message)));
  return keep(message);
}

void MpiWire::wait(Ticket ticket) {
  Message& message = messages_[ticket];
  MPI_Status status{};
  const Patience patience;
  Deadline deadline(timeout_s_);
  for (;;) {
    int done = 0;
    const int code = [&] {
      const std::lock_guard turn(turns());
      return MPI_Test(&message.request, &done, &status);
    }();
    if (code != MPI_SUCCESS) {
      check(code, str(place(), ": message ", message.outgoing ? "to " : "from ", other(message)));
    }
    if (done) {
      break;
    }
    const double waited = patience.waited_s();
    if (deadline.is_over(waited)) {
      fail_silent(message, deadline.seconds());
    }
    if (waited > kAnswerAfter_s) {
      answer_roll_call();
    }
    patience.pause(waited);
  }
  free_.push_back(ticket);
  if (!message.outgoing) {
    int count = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    if (count != message.bytes) {
      fail(ExitCode::kInternal, place(), ": ", other(message), " sent ", count, " bytes where ",
           message.bytes, " were expected; the ranks disagree about this collective",
           flight_verdict_of_job().text);
    }
  }
}

WireCount MpiWire::sent() const {
  WireCount count;
  for (size_t i = 0; i < sent_.size(); ++i) {
    count.by[i] = {sent_[i].inside, sent_[i].between};
  }
  return count;
}

Transport::Ticket MpiWire::keep(const Message& message) {
  if (free_.empty()) {
    messages_.push_back(message);
    return static_cast<Ticket>(messages_.size()) - 1;
  }
  const Ticket ticket = free_.back();
  free_.pop_back();
  messages_[ticket] = message;
  return ticket;
}

int MpiWire::tag() const {
  return static_cast<int>(number_ % kNumbers) * kKinds + static_cast<int>(kind_);
}

std::string MpiWire::place() const { return group_.place(name_of(kind_), bytes_, number_); }

std::string MpiWire::other(const Message& message) const {
  return str("rank ", group_.job_rank(message.peer));
}

void MpiWire::fail_silent(const Message& message, double seconds) const {
  const std::string absent = absent_ranks();
  const JobVerdict verdict = flight_verdict_of_job();
  fail(
      verdict.code,
      str(place(), ": ", other(message), message.outgoing ? " took nothing" : " sent nothing",
          " for ", seconds, " s; ",
          absent.empty() ? "all ranks wait, but not for the same: this is a bug"
                         : str("missing: rank ", absent, " (lost, stuck or very late)"),
          "; start the job again from its last checkpoint, or raise dist.timeout_s", verdict.text));
}

}  // namespace tandem
