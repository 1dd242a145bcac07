// Collectives that pass messages around a ring of ranks (Patarasuk and Yuan 2009, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations"). They need only a small
// point-to-point interface, not MPI.
//
// The order of additions depends only on an element's position and on the number of ranks. Each sum
// is computed on one rank and copied to the others. So all ranks get the same bits, in every run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/core/dtype.h"
#include "src/core/range.h"
#include "src/device/ranks/control.h"

namespace tandem {

// Messages between ranks. Messages from one rank to another arrive in the order in which they were
// sent.
class Transport {
 public:
  using Ticket = int64_t;  // a message in flight

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Both return at once; the memory belongs to the transport until wait(ticket). 0 < bytes <=
  // kLargestMessage. A send may stay in flight until its receive is posted.
  virtual Ticket send(int to, const std::byte* data, int64_t bytes) = 0;
  virtual Ticket receive(int from, std::byte* data, int64_t bytes) = 0;
  virtual void wait(Ticket ticket) = 0;  // each ticket once
};
inline constexpr int64_t kLargestMessage = int64_t{1} << 30;  // MPI 3 counts are 32-bit

// n elements cut into one contiguous shard per rank; sizes differ by at most one element.
struct RingChunks {
  int64_t elements = 0;
  int ranks = 1;
  int64_t first(int part) const;
  int64_t count(int part) const;
};

class Ring {
 public:
  // Data travels in pieces of at most `piece_bytes` (a multiple of 8), so that the addition of one
  // piece overlaps the transfer of the next.
  explicit Ring(Transport& transport, int64_t piece_bytes = kPieceBytes,
                int64_t largest_message = kLargestMessage);

  // data: n elements of f32, f64, or i64, which wraps around; becomes the sum over ranks. A rank
  // sends all shards but one, twice: 2 (N - 1) / N of the data if N divides n.
  void all_reduce(std::byte* data, int64_t n, DType dtype);
  // Shard rank() of data becomes the sum over ranks; the other shards are undefined afterwards.
  void reduce_scatter(std::byte* data, int64_t n, DType dtype);
  // Every rank sends shard rank() of data and receives the others; any dtype.
  void all_gather(std::byte* data, int64_t n, DType dtype);
  // Bytes received[r] of `out` become bytes sent[rank()] of rank r's `in`. Direct messages: a rank
  // sends all chunks but its own.
  void all_to_all(const std::byte* in, std::span<const Range> sent, std::byte* out,
                  std::span<const Range> received);

  // Small messages from every rank to every other. `bytes`: the length of each rank's text.
  std::vector<std::string> exchange(const std::string& text, const std::vector<int64_t>& bytes);
  // As above, for unknown lengths: they are exchanged first.
  std::vector<std::string> exchange(const std::string& text);
  // Sends the root's text to every other rank.
  std::string hand_out(std::string text, int root);
  // Control::read_clock() among these ranks, which ask one after the other.
  ClockReading read_clock();

  static constexpr int64_t kPieceBytes = 512 << 10;

 private:
  static constexpr int64_t kDepth = 4;  // messages in flight per direction

  template <class Outgoing, class Landing, class Arrived>
  void pass(int64_t rounds, Outgoing outgoing, Landing landing, Arrived arrived);
  template <class T>
  void reduce_chunks(T* data, const RingChunks& parts);
  void wait_for(const std::vector<Transport::Ticket>& tickets);
  int neighbour(int distance) const;

  Transport& transport_;
  int64_t piece_bytes_, largest_message_;
  std::unique_ptr<std::byte[]> scratch_;  // [kDepth][piece_bytes_]
};

}  // namespace tandem
