#include "comm/transport/ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "src/core/error.h"

namespace tandem {

namespace {

struct Bytes {
  std::byte* data = nullptr;
  int64_t count = 0;  // 0: there is no message
};

int wrap(int64_t rank, int ranks) { return static_cast<int>((rank % ranks + ranks) % ranks); }

// Piece `index` of a shard, in elements.
struct Span {
  int64_t first, count;
};
Span piece_of(const RingChunks& parts, int part, int64_t index, int64_t piece) {
  const int64_t begin = std::min(index * piece, parts.count(part));
  const int64_t end = std::min(begin + piece, parts.count(part));
  return {parts.first(part) + begin, end - begin};
}

int64_t pieces_in(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

}  // namespace

int64_t RingChunks::first(int part) const {
  return elements / ranks * part + std::min<int64_t>(part, elements % ranks);
}

int64_t RingChunks::count(int part) const { return elements / ranks + (part < elements % ranks); }

Ring::Ring(Transport& transport, int64_t piece_bytes, int64_t largest_message)
    : transport_(transport), piece_bytes_(piece_bytes), largest_message_(largest_message) {
  require(piece_bytes > 0 && piece_bytes % 8 == 0 && piece_bytes <= kLargestMessage,
          "Ring: piece_bytes is no positive multiple of 8, or too large for one message");
  if (transport.size() > 1) {
    scratch_ = std::make_unique<std::byte[]>(static_cast<size_t>(kDepth * piece_bytes));
  }
}

int Ring::neighbour(int distance) const {
  return wrap(transport_.rank() + distance, transport_.size());
}

// In round i this rank sends outgoing(i) to the next rank and receives into landing(i) from the
// previous one; then arrived(i) runs. The data of outgoing(i) is complete once arrived(j) has run
// for all j < i. The memory of landing(i) is free once arrived(i - kDepth) has run.
//
// No deadlock: receives are posted kDepth rounds ahead, and a rank in round i waits at most for its
// send of round i - kDepth, which the next rank asked for no later than in round i - 2 kDepth + 1.
template <class Outgoing, class Landing, class Arrived>
void Ring::pass(int64_t rounds, Outgoing outgoing, Landing landing, Arrived arrived) {
  constexpr Transport::Ticket kNone = -1;
  Transport::Ticket sends[kDepth], receives[kDepth];
  std::fill_n(sends, kDepth, kNone);
  const auto finish = [&](Transport::Ticket& ticket) {
    if (ticket != kNone) {
      transport_.wait(ticket);
      ticket = kNone;
    }
  };
  int64_t posted = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    for (; posted < std::min(rounds, i + kDepth); ++posted) {
      const Bytes in = landing(posted);
      receives[posted % kDepth] =
          in.count > 0 ? transport_.receive(neighbour(-1), in.data, in.count) : kNone;
    }
    finish(sends[i % kDepth]);
    if (const Bytes out = outgoing(i); out.count > 0) {
      sends[i % kDepth] = transport_.send(neighbour(1), out.data, out.count);
    }
    finish(receives[i % kDepth]);
    arrived(i);
  }
  for (auto& ticket : sends) {
    finish(ticket);
  }
}

// In step s rank r sends shard r - 1 - s and adds what it receives to shard r - 2 - s. After N - 1
// steps its shard r has passed all ranks.
template <class T>
void Ring::reduce_chunks(T* data, const RingChunks& parts) {
  const int64_t piece = piece_bytes_ / static_cast<int64_t>(sizeof(T));
  const int64_t pieces = pieces_in(parts.count(0), piece);
  const auto span = [&](int64_t round, int ahead) {
    const int part = wrap(transport_.rank() - ahead - round / pieces, parts.ranks);
    return piece_of(parts, part, round % pieces, piece);
  };
  const auto landed = [&](int64_t round) { return scratch_.get() + round % kDepth * piece_bytes_; };
  constexpr int64_t kWidth = sizeof(T);
  pass((parts.ranks - 1) * pieces,
       [&](int64_t round) {
         const Span out = span(round, 1);
         return Bytes{reinterpret_cast<std::byte*>(data + out.first), out.count * kWidth};
       },
       [&](int64_t round) {
         return Bytes{landed(round), span(round, 2).count * kWidth};
       },
       [&](int64_t round) {
         const Span in = span(round, 2);
         T* into = data + in.first;
         const T* from = reinterpret_cast<const T*>(landed(round));
#pragma omp simd
         for (int64_t i = 0; i < in.count; ++i) {
           into[i] += from[i];
         }
       });
}

void Ring::reduce_scatter(std::byte* data, int64_t n, DType dtype) {
  const RingChunks parts{n, transport_.size()};
  switch (dtype) {
    case DType::kF32:
      return reduce_chunks(reinterpret_cast<float*>(data), parts);
    case DType::kF64:
      return reduce_chunks(reinterpret_cast<double*>(data), parts);
    case DType::kI64:  // unsigned sums wrap around
      return reduce_chunks(reinterpret_cast<uint64_t*>(data), parts);
    default:
      fail(ExitCode::kInternal, "Ring: cannot add ", name_of(dtype));
  }
}

// In step s rank r receives shard r - 1 - s and sends shard r - s: its own, or the last one
// received.
void Ring::all_gather(std::byte* data, int64_t n, DType dtype) {
  const RingChunks parts{n, transport_.size()};
  const int64_t width = size_of(dtype);
  const int64_t piece = piece_bytes_ / width;
  const int64_t pieces = pieces_in(parts.count(0), piece);
  const auto bytes = [&](int64_t round, int ahead) {
    const int part = wrap(transport_.rank() - ahead - round / pieces, parts.ranks);
    const Span span = piece_of(parts, part, round % pieces, piece);
    return Bytes{data + span.first * width, span.count * width};
  };
  pass((parts.ranks - 1) * pieces, [&](int64_t round) { return bytes(round, 0); },
       [&](int64_t round) { return bytes(round, 1); }, [](int64_t) {});
}

void Ring::all_reduce(std::byte* data, int64_t n, DType dtype) {
  reduce_scatter(data, n, dtype);
  all_gather(data, n, dtype);
}

void Ring::all_to_all(const std::byte* in, std::span<const Range> sent, std::byte* out,
                      std::span<const Range> received) {
  std::vector<Transport::Ticket> tickets;
  const auto messages = [&](Range chunk, auto start) {
    for (int64_t first = chunk.begin; first < chunk.end; first += largest_message_) {
      tickets.push_back(start(first, std::min(largest_message_, chunk.end - first)));
    }
  };
  for (int distance = 1; distance < transport_.size(); ++distance) {
    const int from = neighbour(-distance);
    messages(received[from], [&](int64_t first, int64_t count) {
      return transport_.receive(from, out + first, count);
    });
  }
  for (int distance = 1; distance < transport_.size(); ++distance) {
    const int to = neighbour(distance);
    messages(sent[to],
             [&](int64_t first, int64_t count) { return transport_.send(to, in + first, count); });
  }
  const Range own = sent[transport_.rank()];
  if (own.count() > 0) {
    std::memcpy(out + received[transport_.rank()].begin, in + own.begin,
                static_cast<size_t>(own.count()));
  }
  wait_for(tickets);
}

void Ring::wait_for(const std::vector<Transport::Ticket>& tickets) {
  for (const auto ticket : tickets) {
    transport_.wait(ticket);
  }
}

std::vector<std::string> Ring::exchange(const std::string& text,
                                        const std::vector<int64_t>& bytes) {
  const int ranks = transport_.size();
  std::vector<std::string> all(static_cast<size_t>(ranks));
  std::vector<Transport::Ticket> tickets;
  all[transport_.rank()] = text;
  // Nearest neighbours first, so that the ranks do not all turn to rank 0 at once.
  for (int distance = 1; distance < ranks; ++distance) {
    const int from = neighbour(-distance);
    all[from].resize(static_cast<size_t>(bytes[from]));
    if (bytes[from] > 0) {
      tickets.push_back(
          transport_.receive(from, reinterpret_cast<std::byte*>(all[from].data()), bytes[from]));
    }
  }
  for (int distance = 1; distance < ranks && !text.empty(); ++distance) {
    tickets.push_back(transport_.send(neighbour(distance),
                                      reinterpret_cast<const std::byte*>(text.data()),
                                      static_cast<int64_t>(text.size())));
  }
  wait_for(tickets);
  return all;
}

std::vector<std::string> Ring::exchange(const std::string& text) {
  const auto own = static_cast<int64_t>(text.size());
  require(own <= kLargestMessage, "Ring::exchange: text of more than 1 GiB");
  std::string length(sizeof own, '\0');
  std::memcpy(length.data(), &own, sizeof own);
  const std::vector<int64_t> same(static_cast<size_t>(transport_.size()), sizeof own);
  std::vector<int64_t> bytes;
  for (const std::string& one : exchange(length, same)) {
    std::memcpy(&bytes.emplace_back(), one.data(), sizeof(int64_t));
  }
  return exchange(text, bytes);
}

std::string Ring::hand_out(std::string text, int root) {
  std::vector<Transport::Ticket> tickets;
  auto length = static_cast<int64_t>(text.size());
  const auto move = [&](std::byte* data, int64_t bytes) {
    if (transport_.rank() != root) {
      transport_.wait(transport_.receive(root, data, bytes));
      return;
    }
    for (int distance = 1; distance < transport_.size(); ++distance) {
      tickets.push_back(transport_.send(neighbour(distance), data, bytes));
    }
  };
  move(reinterpret_cast<std::byte*>(&length), sizeof length);
  require(length <= kLargestMessage, "Ring::hand_out: text of more than 1 GiB");
  text.resize(static_cast<size_t>(length));
  if (length > 0) {
    move(reinterpret_cast<std::byte*>(text.data()), length);
  }
  wait_for(tickets);
  return text;
}

ClockReading Ring::read_clock() {
  constexpr int kQuestions = 16;
  const auto now = [] {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  int64_t time = 0;
  auto* bytes = reinterpret_cast<std::byte*>(&time);
  const auto send = [&](int to) { transport_.wait(transport_.send(to, bytes, sizeof time)); };
  const auto receive = [&](int from) {
    transport_.wait(transport_.receive(from, bytes, sizeof time));
  };
  if (transport_.rank() == 0) {
    for (int question = 0; question < kQuestions * (transport_.size() - 1); ++question) {
      const int from = 1 + question / kQuestions;
      receive(from);
      time = now();
      send(from);
    }
    return {.at = now()};
  }
  ClockReading best{.bound = std::numeric_limits<int64_t>::max()};
  for (int question = 0; question < kQuestions; ++question) {
    const int64_t asked = now();
    send(0);
    receive(0);
    const int64_t bound = (now() - asked + 1) / 2;
    if (bound < best.bound) {
      best = {.at = asked + bound, .offset = time - (asked + bound), .bound = bound};
    }
  }
  return best;
}

}  // namespace tandem
