#include "comm/mpi_communicator.h"

#include <mpi.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "comm/patience.h"
#include "src/core/copy.h"
#include "src/core/error.h"

namespace tandem {

enum class MpiCommunicator::Kind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSum,
  kHandOut,
  kExchange,
  kBarrier,
};

namespace {

constexpr int kKinds = 8;
constexpr const char* kNames[kKinds] = {
    "all_reduce", "reduce_scatter",    "all_gather",        "broadcast",
    "sum",        "broadcast of text", "gathering of text", "barrier"};

void check(int code, const std::string& what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  int error_class = MPI_ERR_OTHER;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &error_class);
  // These say that this program made a wrong call; everything else may be the machine's fault.
  const bool wrong_call = error_class == MPI_ERR_TRUNCATE || error_class == MPI_ERR_COUNT ||
                          error_class == MPI_ERR_RANK || error_class == MPI_ERR_TAG ||
                          error_class == MPI_ERR_BUFFER || error_class == MPI_ERR_COMM ||
                          error_class == MPI_ERR_TYPE || error_class == MPI_ERR_ARG;
  fail(wrong_call ? ExitCode::kInternal : ExitCode::kTemporary, str(what, ": ", text));
}

}  // namespace

// All members but the counters are used by the worker alone.
class MpiCommunicator::Wire final : public Transport {
 public:
  explicit Wire(const std::atomic<double>& timeout_s) : timeout_s_(timeout_s) {
    // Nobody else in this program sends messages, so the world's own context serves.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // The messages that follow belong to this collective.
  void begin(Kind kind, int64_t bytes) {
    kind_ = kind;
    bytes_ = bytes;
    ++number_;
  }

  Ticket send(int to, const std::byte* data, int64_t bytes) override {
    Message message{.peer = to, .bytes = bytes, .outgoing = true};
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag(), MPI_COMM_WORLD,
                    &message.request),
          str(place(), ": sending to rank ", to));
    const bool is_payload = kind_ <= Kind::kBroadcast;
    (is_payload ? payload_bytes : control_bytes) += bytes;
    return keep(message);
  }

  Ticket receive(int from, std::byte* data, int64_t bytes) override {
    Message message{.peer = from, .bytes = bytes, .outgoing = false};
    check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag(), MPI_COMM_WORLD,
                    &message.request),
          str(place(), ": receiving from rank ", from));
    return keep(message);
  }

  void wait(Ticket ticket) override {
    Message& message = messages_[ticket];
    MPI_Status status{};
    const Patience patience;
    for (;;) {
      int done = 0;
      const int code = MPI_Test(&message.request, &done, &status);
      if (code != MPI_SUCCESS) {
        check(code,
              str(place(), ": message ", message.outgoing ? "to" : "from", " rank ", message.peer));
      }
      if (done) {
        break;
      }
      const double waited = patience.waited_s();
      if (waited > timeout_s_) {
        fail_silent(message);
      }
      if (waited > kAnswerAfter_s) {
        answer_roll_call();
      }
      patience.pause(waited);
    }
    free_.push_back(ticket);
    if (!message.outgoing) {
      require_length(message, status);
    }
  }

  std::atomic<int64_t> payload_bytes{0}, control_bytes{0};

 private:
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = 0;
    int64_t bytes = 0;
    bool outgoing = false;
  };

  Ticket keep(const Message& message) {
    if (free_.empty()) {
      messages_.push_back(message);
      return static_cast<Ticket>(messages_.size()) - 1;
    }
    const Ticket ticket = free_.back();
    free_.pop_back();
    messages_[ticket] = message;
    return ticket;
  }

  // Every MPI has tags up to 32767: the number modulo 4095 and the kind take those below 32760.
  int tag() const { return static_cast<int>(number_ % 4095) * kKinds + static_cast<int>(kind_); }
  static constexpr int kAskTag = 32766, kAnswerTag = 32767;
  static constexpr double kAnswerAfter_s = 0.1, kRollCall_s = 1;

  // Takes one empty message of this tag; returns its sender, or -1.
  static int taken(int tag) {
    int there = 0;
    MPI_Status status{};
    MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &status);
    if (!there) {
      return -1;
    }
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return status.MPI_SOURCE;
  }
  static void send_empty(int to, int tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
  }
  static void answer_roll_call() {
    for (int asker = taken(kAskTag); asker >= 0; asker = taken(kAskTag)) {
      send_empty(asker, kAnswerTag);
    }
  }

  // The neighbour that sends nothing may itself be waiting: asks all ranks, and returns those that
  // are not waiting in a collective too. Errors count as silence.
  std::string absent_ranks() const {
    std::vector<bool> present(static_cast<size_t>(size_), false);
    present[rank_] = true;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
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
    for (int peer = 0; peer < size_; ++peer) {
      if (!present[peer]) {
        absent += str(absent.empty() ? "" : ", ", peer);
      }
    }
    return absent;
  }

  std::string place() const {
    return str(kNames[static_cast<int>(kind_)], " of ", bytes_, " bytes (collective ", number_,
               " of this run, rank ", rank_, " of ", size_, ")");
  }

  void require_length(const Message& message, const MPI_Status& status) const {
    int count = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    if (count != message.bytes) {
      fail(ExitCode::kInternal,
           str(place(), ": rank ", message.peer, " sent ", count, " bytes where ", message.bytes,
               " were expected; the ranks disagree about this collective"));
    }
  }

  [[noreturn]] void fail_silent(const Message& message) const {
    const std::string absent = absent_ranks();
    fail(ExitCode::kTemporary,
         str(place(), ": rank ", message.peer, message.outgoing ? " took nothing" : " sent nothing",
             " for ", timeout_s_.load(), " s; ",
             absent.empty() ? "all ranks wait, but not for the same: this is a bug"
                            : str("missing: rank ", absent, " (lost, stuck or very late)"),
             "; start the job again from its last checkpoint, or raise dist.timeout_s"));
  }

  const std::atomic<double>& timeout_s_;
  int rank_ = 0;
  int size_ = 1;
  Kind kind_ = Kind::kBarrier;
  int64_t bytes_ = 0;
  int64_t number_ = 0;
  std::vector<Message> messages_;
  std::vector<Ticket> free_;
};

// Host memory in the place of a GPU's while messages pass: MPI itself knows nothing of GPUs.
class MpiCommunicator::Staging {
 public:
  // The tensor itself when it is in host memory, otherwise a copy.
  Tensor host(const Tensor& tensor) {
    return tensor.device() == Device::kCpu ? tensor : copied(gpu(), tensor, memory_);
  }
  // Writes what host() gave back to where it came from.
  void put_back(const Tensor& host, const Tensor& tensor) {
    if (tensor.device() != Device::kCpu) {
      copy(gpu(), host, tensor);
      gpu().synchronize();
    }
  }

 private:
  Stream& gpu() {
    if (!gpu_) {
      gpu_.emplace(Stream::background(Device::kCuda));
    }
    return *gpu_;
  }
  Memory memory_{Device::kCpu};
  std::optional<Stream> gpu_;
};

MpiCommunicator::MpiCommunicator(Stream& worker, const std::atomic<double>& timeout_s)
    : worker_(worker), staging_(std::make_unique<Staging>()) {
  worker_.submit([&] {
    wire_ = std::make_unique<Wire>(timeout_s);
    ring_ = std::make_unique<Ring>(*wire_);
  });
  worker_.synchronize();
}

MpiCommunicator::~MpiCommunicator() = default;

int MpiCommunicator::rank() const { return wire_->rank(); }
int MpiCommunicator::size() const { return wire_->size(); }

void MpiCommunicator::start(Kind kind, int64_t bytes, std::function<void(Ring&)> work) {
  worker_.submit([this, kind, bytes, work = std::move(work)] {
    wire_->begin(kind, bytes);
    work(*ring_);
  });
}

void MpiCommunicator::run(Kind kind, int64_t bytes, std::function<void(Ring&)> work) {
  start(kind, bytes, std::move(work));
  worker_.synchronize();
}

namespace {

void require_sum(const char* collective, DType dtype) {
  require(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16,
          [&] { return str(collective, ": cannot add ", name_of(dtype)); });
}

}  // namespace

void MpiCommunicator::all_reduce(const Tensor& inout) {
  require_sum("all_reduce", inout.dtype());
  ++collectives_;
  start(Kind::kAllReduce, inout.bytes(), [this, inout](Ring& ring) {
    const Tensor host = staging_->host(inout);
    ring.all_reduce(host.raw(), host.elements(), host.dtype());
    staging_->put_back(host, inout);
  });
}

void MpiCommunicator::reduce_scatter(const Tensor& in, const Tensor& out) {
  require_sum("reduce_scatter", in.dtype());
  require(in.dtype() == out.dtype() && in.elements() == out.elements() * size(),
          [&] { return str("reduce_scatter: ", in.shape(), " into parts of ", out.shape()); });
  ++collectives_;
  start(Kind::kReduceScatter, in.bytes(), [this, in, out, part = rank()](Ring& ring) {
    const Tensor host = staging_->host(in);
    ring.reduce_scatter(host.raw(), host.elements(), host.dtype());
    const Tensor sum = host.slice(part * out.elements(), out.elements());
    if (out.device() != Device::kCpu) {
      staging_->put_back(sum, out);
    } else if (sum.raw() != out.raw()) {
      std::memcpy(out.raw(), sum.raw(), static_cast<size_t>(out.bytes()));
    }
  });
}

void MpiCommunicator::all_gather(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && out.elements() == in.elements() * size(),
          [&] { return str("all_gather: parts of ", in.shape(), " into ", out.shape()); });
  ++collectives_;
  start(Kind::kAllGather, out.bytes(), [this, in, out, part = rank()](Ring& ring) {
    const Tensor own = staging_->host(in), host = staging_->host(out);
    std::byte* place = host.raw() + part * own.bytes();
    if (place != own.raw()) {
      std::memcpy(place, own.raw(), static_cast<size_t>(own.bytes()));
    }
    ring.all_gather(host.raw(), host.elements(), host.dtype());
    staging_->put_back(host, out);
  });
}

void MpiCommunicator::broadcast(const Tensor& inout, int root) {
  require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
  ++collectives_;
  start(Kind::kBroadcast, inout.bytes(), [this, inout, root](Ring& ring) {
    const Tensor host = staging_->host(inout);
    ring.broadcast(host.raw(), host.bytes(), root);
    staging_->put_back(host, inout);
  });
}

std::vector<double> MpiCommunicator::sum(std::span<const double> values) {
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  require(bytes <= kLargestMessage, "sum: too many values for a control message");
  std::vector<std::string> all;
  run(Kind::kSum, bytes, [&](Ring& ring) {
    const std::string own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    all = ring.exchange(own, std::vector<int64_t>(static_cast<size_t>(size()), bytes));
  });
  std::vector<double> total(values.size(), 0.0);
  for (const std::string& one : all) {
    for (size_t i = 0; i < total.size(); ++i) {
      double value = 0;
      std::memcpy(&value, one.data() + i * sizeof value, sizeof value);
      total[i] += value;
    }
  }
  return total;
}

std::string MpiCommunicator::broadcast(std::string text, int root) {
  require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
  run(Kind::kHandOut, static_cast<int64_t>(text.size()),
      [&](Ring& ring) { text = ring.hand_out(std::move(text), root); });
  return text;
}

std::vector<std::string> MpiCommunicator::all_gather(const std::string& text) {
  std::vector<std::string> all;
  run(Kind::kExchange, static_cast<int64_t>(text.size()),
      [&](Ring& ring) { all = ring.exchange(text); });
  return all;
}

void MpiCommunicator::barrier() {
  // One byte each way: an empty message would not be sent.
  run(Kind::kBarrier, 1, [this](Ring& ring) {
    ring.exchange("b", std::vector<int64_t>(static_cast<size_t>(size()), 1));
  });
}

WireCount MpiCommunicator::wire() const {
  return {wire_->payload_bytes, wire_->control_bytes, collectives_};
}

}  // namespace tandem
