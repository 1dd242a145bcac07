#include "tests/comm/collectives_check.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/core/error.h"
#include "src/device/copy.h"
#include "tests/support/harness.h"

namespace tandem::testing {

int64_t number(DType dtype, int rank, int64_t i) {
  const int64_t small = (rank + 1) * (i % 13) + rank;
  // An odd factor loses nothing; unsigned, because it wraps around.
  return dtype == DType::kI64
             ? static_cast<int64_t>(static_cast<uint64_t>(small) * 0x7fff'ffff'ffff'0001u)
             : small;
}

Tensor numbers(DType dtype, const std::vector<int>& ranks, int64_t first, int64_t n,
               Device device) {
  const Tensor host = Tensor::zeros(test_memory(), {n}, dtype, MemoryClass::kGradients);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t sum = 0;
    for (const int rank : ranks) {
      sum += static_cast<uint64_t>(number(dtype, rank, first + i));
    }
    switch (dtype) {
      case DType::kI64:
        host.data<int64_t>()[i] = static_cast<int64_t>(sum);
        break;
      case DType::kU8:
        host.data<uint8_t>()[i] = static_cast<uint8_t>(sum);
        break;
      case DType::kF64:
        host.data<double>()[i] = static_cast<double>(sum);
        break;
      default:
        host.data<float>()[i] = static_cast<float>(sum);
    }
  }
  return to_device(host, device);
}

Tensor unset(DType dtype, int64_t n, Device device) {
  const Tensor host = Tensor::zeros(test_memory(), {n}, dtype, MemoryClass::kGradients);
  std::memset(host.raw(), 0xff, static_cast<size_t>(host.bytes()));
  return to_device(host, device);
}

void expect_same(const Tensor& tensor, const Tensor& expected, const std::string& what) {
  const Tensor a = to_host(tensor), b = to_host(expected);
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  const std::byte* found = std::mismatch(a.raw(), a.raw() + a.bytes(), b.raw()).first;
  EXPECT_EQ(found, a.raw() + a.bytes())
      << what << ", element " << (found - a.raw()) / size_of(a.dtype()) << " of " << a.elements();
}

void order_behind_compute(Stream& stream, Device device) {
  stream.wait(test_stream(device).record());
}

namespace {

// One group under test.
class Check {
 public:
  Check(const Ranks& ranks, const std::vector<int>& members, Device device)
      : control_(ranks.control),
        collectives_(ranks.collectives),
        members_(members),
        device_(device),
        rank_(ranks.rank()),
        size_(ranks.size()),
        self_{members[static_cast<size_t>(rank_)]} {}

  void all_reduce(DType dtype, int64_t n) {
    for (const Traffic traffic : {Traffic::kAllReduce, Traffic::kControl}) {
      const Tensor data = numbers(dtype, self_, 0, n * size_, device_);
      const WireCount wire = run([&] { collectives_.all_reduce(data, traffic); });
      expect_same(data, numbers(dtype, members_, 0, n * size_, device_), "all_reduce");
      expect_count(wire, traffic, 2 * (size_ - 1) * n * size_of(dtype));
    }
    const int64_t odd = n * size_ + 1;  // shards differ in size
    const Tensor data = numbers(dtype, self_, 0, odd, device_);
    run([&] { collectives_.all_reduce(data); });
    expect_same(data, numbers(dtype, members_, 0, odd, device_), "all_reduce of odd size");
  }

  void reduce_scatter(DType dtype, int64_t n) {
    for (const bool in_place : {false, true}) {
      const Tensor in = numbers(dtype, self_, 0, n * size_, device_);
      const Tensor out = in_place ? in.slice(n * rank_, n) : unset(dtype, n, device_);
      const WireCount wire = run([&] { collectives_.reduce_scatter(in, out); });
      expect_same(out, numbers(dtype, members_, n * rank_, n, device_), "reduce_scatter");
      expect_count(wire, Traffic::kReduceScatter, (size_ - 1) * out.bytes());
    }
  }

  void all_gather(DType dtype, int64_t n) {
    for (const bool in_place : {false, true}) {
      const Tensor out = unset(dtype, n * size_, device_);
      Tensor in = numbers(dtype, self_, n * rank_, n, device_);
      if (in_place) {
        in = put(in, out.slice(n * rank_, n));
      }
      const WireCount wire = run([&] { collectives_.all_gather(in, out); });
      for (int from = 0; from < size_; ++from) {
        expect_same(out.slice(n * from, n), numbers(dtype, {members_[from]}, n * from, n, device_),
                    str("all_gather, part ", from));
      }
      expect_count(wire, Traffic::kAllGather, (size_ - 1) * in.bytes());
    }
  }

  void all_to_all(DType dtype, int64_t n) {
    const Tensor in = numbers(dtype, self_, 0, n * size_, device_);
    const Tensor out = unset(dtype, n * size_, device_);
    const WireCount wire = run([&] { collectives_.all_to_all(in, out); });
    for (int from = 0; from < size_; ++from) {
      expect_same(out.slice(n * from, n), numbers(dtype, {members_[from]}, n * rank_, n, device_),
                  str("all_to_all, part ", from));
    }
    expect_same(in, numbers(dtype, self_, 0, n * size_, device_), "all_to_all's input");
    expect_count(wire, Traffic::kAllToAll, (size_ - 1) * n * size_of(dtype));
  }

  // Chunks of several sizes, some of them empty, stand in `in` from the last rank to the first.
  void all_to_all_v(DType dtype, int64_t n) {
    const auto count = [n](int from, int to) { return n * ((from + 2 * to) % 3); };
    const auto chunks_of = [&](int from) {
      std::vector<Range> chunks(static_cast<size_t>(size_));
      int64_t at = 1;
      for (int to = size_ - 1; to >= 0; --to) {
        chunks[to] = {at, at + count(from, to)};
        at = chunks[to].end;
      }
      return chunks;
    };
    const std::vector<Range> own = chunks_of(rank_);
    std::vector<Range> received;
    int64_t sent_away = 0, at = 0;
    for (int other = 0; other < size_; ++other) {
      received.push_back({at, at + count(other, rank_)});
      at = received.back().end + 1;
      sent_away += other == rank_ ? 0 : own[other].count();
    }
    const Tensor in = numbers(dtype, self_, 0, own[0].end, device_);
    const Tensor out = unset(dtype, at, device_);
    const WireCount wire = run([&] { collectives_.all_to_all_v(in, own, out, received, n); });
    for (int from = 0; from < size_; ++from) {
      const Range chunk = chunks_of(from)[rank_];
      expect_same(out.slice(received[from].begin, chunk.count()),
                  numbers(dtype, {members_[from]}, chunk.begin, chunk.count(), device_),
                  str("all_to_all_v, part ", from));
    }
    expect_count(wire, Traffic::kAllToAll, sent_away * size_of(dtype));
  }

  void control() {
    const double rank = self_[0];
    double sum = 0;
    for (const int member : members_) {
      sum += member;
    }
    EXPECT_EQ(control_.sum({&rank, 1})[0], sum);
    const std::vector<std::string> texts = control_.all_gather(str(self_[0]));
    for (int from = 0; from < size_; ++from) {
      EXPECT_EQ(texts[from], str(members_[from]));
      EXPECT_EQ(control_.broadcast(str(self_[0]), from), str(members_[from]));
    }
    control_.barrier();
  }

 private:
  template <class F>
  WireCount run(F work) {
    return sent(collectives_, device_, work);
  }

  static Tensor put(const Tensor& from, const Tensor& to) {
    copy(test_stream(to.device()), from, to);
    return to;
  }

  // A world of 1 rank counts no collectives.
  void expect_count(const WireCount& wire, Traffic traffic, int64_t bytes) const {
    WireCount expected;
    expected.by[static_cast<size_t>(traffic)].inside = bytes;
    expected.collectives = traffic != Traffic::kControl;
    EXPECT_EQ(wire.by, expected.by) << name_of(traffic);
    if (size_ > 1) {
      EXPECT_EQ(wire.collectives, expected.collectives) << name_of(traffic);
    }
  }

  Control& control_;
  Collectives& collectives_;
  const std::vector<int>& members_;
  Device device_;
  int rank_, size_;
  std::vector<int> self_;  // this rank's number in the job
};

}  // namespace

void check_collectives(const Ranks& ranks, const std::vector<int>& members, Device device) {
  ASSERT_EQ(ranks.control.size(), std::ssize(members));
  ASSERT_EQ(ranks.collectives.size(), std::ssize(members));
  ASSERT_EQ(ranks.control.rank(), ranks.collectives.rank());
  Check check(ranks, members, device);
  check.control();
  for (const int64_t n : {0, 1, 3, 1501}) {
    SCOPED_TRACE(str(n, " elements a rank, ", members.size(), " ranks"));
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
      check.all_reduce(dtype, n);
      check.reduce_scatter(dtype, n);
    }
    for (const DType dtype : {DType::kF32, DType::kI64, DType::kU8}) {
      check.all_gather(dtype, n);
      check.all_to_all(dtype, n);
      check.all_to_all_v(dtype, n);
    }
  }
}

void check_splits(const Ranks& world, Device device) {
  const int size = world.size();
  std::vector<int> halves, odd_and_even, alone(static_cast<size_t>(size));
  std::iota(alone.begin(), alone.end(), 0);
  for (const int rank : alone) {
    halves.push_back(rank < size / 2 ? 7 : 3);
    odd_and_even.push_back(rank % 2);
  }
  for (const auto& colors : {halves, odd_and_even, alone}) {
    std::vector<int> members;
    for (const int rank : alone) {
      if (colors[rank] == colors[world.rank()]) {
        members.push_back(rank);
      }
    }
    const std::unique_ptr<Control> control = world.control.split(colors);
    const std::unique_ptr<Collectives> part = world.collectives.split(colors);
    EXPECT_EQ(members[part->rank()], world.rank());
    check_collectives({*control, *part}, members, device);
    const std::vector<int> same(members.size(), 0);
    const std::unique_ptr<Control> control_again = control->split(same);
    const std::unique_ptr<Collectives> again = part->split(same);
    check_collectives({*control_again, *again}, members, device);
  }
  world.control.barrier();
}

}  // namespace tandem::testing
