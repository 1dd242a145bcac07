// Collectives as passes of messages around a ring of ranks (Patarasuk and Yuan 2009, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations"). Pure code over a small
// point-to-point interface: no MPI here.
//
// The order of additions depends on the element's position and the number of ranks only, and the
// result is computed on one rank and copied to the others: the same bits everywhere, every time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/core/dtype.h"

namespace tandem {

// Messages between ranks. Those from one rank to another arrive in the order of their sending.
class Transport {
 public:
  using Ticket = int64_t;  // a message under way

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Both return at once; the memory belongs to the transport until wait(ticket). 0 < bytes <=
  // kLargestMessage. A send may stay under way until the receiver has asked for it.
  virtual Ticket send(int to, const std::byte* data, int64_t bytes) = 0;
  virtual Ticket receive(int from, std::byte* data, int64_t bytes) = 0;
  virtual void wait(Ticket ticket) = 0;  // each ticket once
};
inline constexpr int64_t kLargestMessage = int64_t{1} << 30;  // MPI 3 counts are 32-bit

// n elements split into one contiguous part per rank; sizes differ by at most one element.
struct Parts {
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

  // data: n elements of f32, f64 or i64, which wraps around; becomes the sum over ranks. A rank
  // sends all parts but one, then all parts but one again: 2 (N - 1) / N of the data when N divides
  // n.
  void all_reduce(std::byte* data, int64_t n, DType dtype);
  // Part rank() of data becomes the sum over ranks; the other parts are scratch afterwards.
  void reduce_scatter(std::byte* data, int64_t n, DType dtype);
  // Every rank gives part rank() of data and gets the others; any dtype.
  void all_gather(std::byte* data, int64_t n, DType dtype);
  // in, out: `bytes` in size() equal parts, apart: part r of out becomes part rank() of rank r's
  // in. Direct messages: a rank sends all parts but its own.
  void all_to_all(const std::byte* in, std::byte* out, int64_t bytes);
  // Pieces run from the root along the ring; every rank but the last one passes them on.
  void broadcast(std::byte* data, int64_t bytes, int root);

  // Small messages, from every rank to every other. `bytes` says how long each rank's text is.
  std::vector<std::string> exchange(const std::string& text, const std::vector<int64_t>& bytes);
  // As above when the lengths are not known: they are exchanged first.
  std::vector<std::string> exchange(const std::string& text);
  // From the root to every other.
  std::string hand_out(std::string text, int root);

  static constexpr int64_t kPieceBytes = 512 << 10;

 private:
  static constexpr int64_t kDepth = 4;  // messages in flight per direction

  template <class Outgoing, class Landing, class Arrived>
  void pass(int64_t rounds, Outgoing outgoing, Landing landing, Arrived arrived);
  template <class T>
  void reduce_parts(T* data, const Parts& parts);
  void gather_parts(std::byte* data, const Parts& parts, int64_t width);
  void wait_for(const std::vector<Transport::Ticket>& tickets);
  int neighbour(int distance) const;

  Transport& transport_;
  int64_t piece_bytes_, largest_message_;
  std::unique_ptr<std::byte[]> scratch_;  // [kDepth][piece_bytes_]
};

}  // namespace tandem
