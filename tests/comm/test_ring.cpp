// The ring algorithms among threads. The transport holds every message back until both sides wait
// for it, so that a buffer that is reused too early shows as a wrong sum.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "comm/transport/ring.h"
#include "src/core/error.h"

namespace tandem::testing {
namespace {

struct Letter {
  const std::byte* data;
  int64_t bytes;
  bool taken = false;
};

struct Post {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> letters;  // by (from, to)
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(Post& post, int rank, int size) : post_(post), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Ticket send(int to, const std::byte* data, int64_t bytes) override {
    check(to, bytes);
    sent_bytes += bytes;
    auto letter = std::make_shared<Letter>(Letter{data, bytes});
    std::lock_guard lock(post_.mutex);
    post_.letters[{rank_, to}].push_back(letter);
    post_.changed.notify_all();
    return keep([this, letter] {
      std::unique_lock wait_lock(post_.mutex);
      post_.changed.wait(wait_lock, [&] {
        deliver();
        return letter->taken;
      });
    });
  }

  Ticket receive(int from, std::byte* data, int64_t bytes) override {
    check(from, bytes);
    std::memset(data, 0xff, static_cast<size_t>(bytes));  // nobody may read it before it arrives
    auto request = std::make_shared<Request>(Request{from, data, bytes});
    posted_.push_back(request);
    return keep([this, request] {
      std::unique_lock lock(post_.mutex);
      post_.changed.wait(lock, [&] {
        deliver();
        return request->arrived;
      });
    });
  }

  void wait(Ticket ticket) override {
    const auto work = waits_.at(ticket);
    waits_.erase(ticket);
    work();
  }

  size_t open() const { return waits_.size(); }
  int64_t sent_bytes = 0;

 private:
  struct Request {
    int from;
    std::byte* data;
    int64_t bytes;
    bool arrived = false;
  };

  // Fills every posted receive whose message has come, not only the one that is waited for.
  void deliver() {
    for (const auto& request : posted_) {
      auto& queue = post_.letters[{request->from, rank_}];
      if (request->arrived || queue.empty()) {
        continue;
      }
      const auto letter = queue.front();
      queue.pop_front();
      require(letter->bytes == request->bytes, "message of another size");
      std::memcpy(request->data, letter->data, static_cast<size_t>(letter->bytes));
      request->arrived = true;
      letter->taken = true;
      post_.changed.notify_all();
    }
    std::erase_if(posted_, [](const auto& request) { return request->arrived; });
  }

  void check(int peer, int64_t bytes) const {
    require(peer >= 0 && peer < size_ && peer != rank_, "no such peer");
    require(bytes > 0 && bytes <= kLargestMessage, "message size");
  }
  Ticket keep(std::function<void()> wait) {
    waits_[next_] = std::move(wait);
    return next_++;
  }

  Post& post_;
  int rank_, size_;
  Ticket next_ = 0;
  std::map<Ticket, std::function<void()>> waits_;
  std::deque<std::shared_ptr<Request>> posted_;
};

void for_ranks(int size, const std::function<void(ThreadTransport&)>& body) {
  Post post;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadTransport transport(post, rank, size);
      body(transport);
      EXPECT_EQ(transport.open(), 0u) << "messages nobody waited for";
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

constexpr int64_t kSmallPiece = 64;  // bytes: many pieces even in small buffers

// Small integers, so that sums are exact whatever their order.
template <class T>
T element(int rank, int64_t i) {
  return static_cast<T>((rank + 1) * (i % 97) + rank);
}
template <class T>
T summed(int ranks, int64_t i) {
  T total = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    total += element<T>(rank, i);
  }
  return total;
}

template <class T>
std::vector<T> filled(int rank, int64_t n) {
  std::vector<T> data(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    data[i] = element<T>(rank, i);
  }
  return data;
}

template <class T>
std::byte* bytes_of(std::vector<T>& data) {
  return reinterpret_cast<std::byte*>(data.data());
}

template <class T>
void check_all_reduce(int ranks, int64_t n) {
  SCOPED_TRACE(str(ranks, " ranks, ", n, " elements"));
  std::vector<T> expected(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    expected[i] = summed<T>(ranks, i);
  }
  for_ranks(ranks, [&](ThreadTransport& transport) {
    Ring ring(transport, kSmallPiece);
    std::vector<T> data = filled<T>(transport.rank(), n);
    ring.all_reduce(bytes_of(data), n, dtype_of<T>);
    EXPECT_TRUE(data == expected) << "rank " << transport.rank();
    if (n % ranks == 0) {
      EXPECT_EQ(transport.sent_bytes, 2 * (ranks - 1) * n / ranks * int64_t{sizeof(T)});
    }
  });
}

TEST(Ring, AllReduceIsTheSum) {
  for (int ranks : {1, 2, 3, 4, 7}) {
    for (int64_t n : {0, 1, ranks - 1, ranks, ranks + 1, 15, 16, 17, 97, 1000, 4096}) {
      check_all_reduce<float>(ranks, n);
      check_all_reduce<double>(ranks, n);
      check_all_reduce<int64_t>(ranks, n);
    }
  }
}

// Rounding shows the order of additions: it must be the same on all ranks and for all piece sizes.
TEST(Ring, AllRanksGetTheSameBits) {
  constexpr int kRanks = 4;
  constexpr int64_t kCount = 1001;
  std::vector<std::vector<float>> results(2 * kRanks);
  for (int run = 0; run < 2; ++run) {
    for_ranks(kRanks, [&](ThreadTransport& transport) {
      Ring ring(transport, run == 0 ? kSmallPiece : 4096);
      std::vector<float> data(kCount);
      for (int64_t i = 0; i < kCount; ++i) {
        data[i] = 1.0f / static_cast<float>(3 + i + 1000 * transport.rank());
      }
      ring.all_reduce(bytes_of(data), kCount, DType::kF32);
      results[run * kRanks + transport.rank()] = data;
    });
  }
  for (const auto& result : results) {
    EXPECT_TRUE(result == results[0]);
  }
}

TEST(Ring, ReduceScatterGivesEachRankItsPart) {
  for (int ranks : {1, 2, 3, 4}) {
    for (int64_t n : {0, 1, 12, 100, 1003}) {
      SCOPED_TRACE(str(ranks, " ranks, ", n, " elements"));
      for_ranks(ranks, [&](ThreadTransport& transport) {
        Ring ring(transport, kSmallPiece);
        std::vector<float> data = filled<float>(transport.rank(), n);
        ring.reduce_scatter(bytes_of(data), n, DType::kF32);
        const RingChunks parts{n, ranks};
        const int64_t first = parts.first(transport.rank());
        for (int64_t i = first; i < first + parts.count(transport.rank()); ++i) {
          ASSERT_EQ(data[i], summed<float>(ranks, i)) << i;
        }
      });
    }
  }
}

TEST(Ring, SumsOfIntegersWrapAround) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  for_ranks(3, [&](ThreadTransport& transport) {
    Ring ring(transport, kSmallPiece);
    std::vector<int64_t> data(100, kLargest);
    ring.all_reduce(bytes_of(data), 100, DType::kI64);
    EXPECT_TRUE(data == std::vector<int64_t>(100, kLargest - 2));  // 3 (2^63 - 1) - 2^64
  });
}

TEST(Ring, AllToAllTransposes) {
  constexpr int64_t kLargestPiece = 40;  // bytes: several messages to each rank
  for (int ranks : {1, 2, 3, 4, 7}) {
    for (int64_t n : {0, 1, 10, 101}) {  // elements of a shard
      SCOPED_TRACE(str(ranks, " ranks, ", n, " elements a part"));
      for_ranks(ranks, [&](ThreadTransport& transport) {
        Ring ring(transport, kSmallPiece, kLargestPiece);
        const int rank = transport.rank();
        std::vector<int> in = filled<int>(rank, n * ranks), out(in.size(), -1);
        std::vector<Range> chunks;
        for (int64_t r = 0; r < ranks; ++r) {
          chunks.push_back({r * n * 4, (r + 1) * n * 4});
        }
        ring.all_to_all(bytes_of(in), chunks, bytes_of(out), chunks);
        for (int64_t i = 0; i < n * ranks; ++i) {
          const int from = static_cast<int>(i / n);
          ASSERT_EQ(out[i], element<int>(from, rank * n + i % n)) << i;
        }
        EXPECT_EQ(transport.sent_bytes, (ranks - 1) * n * 4);
      });
    }
  }
}

TEST(Ring, AllGatherCollectsTheParts) {
  for (int ranks : {1, 2, 3, 4}) {
    for (int64_t n : {0, 1, 12, 100, 1003}) {
      SCOPED_TRACE(str(ranks, " ranks, ", n, " elements"));
      const std::vector<int64_t> whole = filled<int64_t>(0, n);
      for_ranks(ranks, [&](ThreadTransport& transport) {
        Ring ring(transport, kSmallPiece);
        const RingChunks parts{n, ranks};
        std::vector<int64_t> data(static_cast<size_t>(n), -1);
        const int64_t first = parts.first(transport.rank());
        std::copy_n(whole.begin() + first, parts.count(transport.rank()), data.begin() + first);
        ring.all_gather(bytes_of(data), n, DType::kI64);
        EXPECT_TRUE(data == whole);
      });
    }
  }
}

TEST(Ring, TextOfDifferentLengths) {
  for (int ranks : {1, 2, 3, 5}) {
    for_ranks(ranks, [&](ThreadTransport& transport) {
      Ring ring(transport, kSmallPiece);
      const auto text_of = [](int rank) {
        return std::string(static_cast<size_t>(rank) * 100, static_cast<char>('a' + rank));
      };
      const auto all = ring.exchange(text_of(transport.rank()));
      ASSERT_EQ(all.size(), static_cast<size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(all[rank], text_of(rank));
      }
      for (int root = 0; root < ranks; ++root) {
        EXPECT_EQ(ring.hand_out(text_of(transport.rank()), root), text_of(root));
      }
    });
  }
}

TEST(RingChunks, CoverEverythingOnce) {
  for (int ranks : {1, 2, 3, 7}) {
    for (int64_t n :
         {int64_t{0}, int64_t{1}, int64_t{6}, int64_t{7}, int64_t{100}, (int64_t{1} << 40) + 3}) {
      const RingChunks parts{n, ranks};
      int64_t next = 0;
      for (int part = 0; part < ranks; ++part) {
        EXPECT_EQ(parts.first(part), next);
        EXPECT_LE(parts.count(part), parts.count(0));
        next += parts.count(part);
      }
      EXPECT_EQ(next, n);
    }
  }
}

}  // namespace
}  // namespace tandem::testing
