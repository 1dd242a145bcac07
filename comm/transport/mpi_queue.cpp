#include "comm/transport/mpi_queue.h"

#include "comm/transport/mpi_wire.h"
#include "src/core/error.h"
#include "src/trace/flight_log.h"

namespace tandem {

struct MpiQueue::Channel {
  explicit Channel(std::unique_ptr<MpiWire> wire_) : wire(std::move(wire_)) {}

  std::unique_ptr<MpiWire> wire;
  Ring ring{*wire};
  const std::string ranks = wire->ranks().name();
  const uint64_t flight_group = flight_log().open_group(ranks);
  std::atomic<int64_t> queued{0};
};

MpiQueue::MpiQueue(Stream& worker, const std::atomic<double>& timeout_s) : worker_(worker) {
  worker_.submit([&] { channel_ = std::make_shared<Channel>(MpiWire::of_the_job(timeout_s)); });
  worker_.synchronize();
}

MpiQueue::MpiQueue(Stream& worker, std::shared_ptr<Channel> channel)
    : worker_(worker), channel_(std::move(channel)) {}

int MpiQueue::rank() const { return channel_->wire->rank(); }
int MpiQueue::size() const { return channel_->wire->size(); }

void MpiQueue::start(MpiKind kind, Traffic traffic, int64_t bytes, Work work) const {
  FlightLog& log = flight_log();
  const uint64_t noted = log.enqueue(channel_->flight_group, channel_->ranks, ++channel_->queued,
                                     name_of(kind), bytes);
  worker_.submit([channel = channel_, kind, traffic, bytes, noted, &log, work = std::move(work)] {
    log.begin(noted);
    channel->wire->begin(kind, traffic, bytes);
    work(channel->ring);
    log.end(noted);
  });
}

void MpiQueue::run(MpiKind kind, int64_t bytes, Work work) const {
  start(kind, Traffic::kControl, bytes, std::move(work));
  worker_.synchronize();
}

// One byte each way: an empty message would not be sent.
void MpiQueue::meet(MpiKind kind) const {
  run(kind, 1, [ranks = static_cast<size_t>(size())](Ring& ring) {
    ring.exchange("b", std::vector<int64_t>(ranks, 1));
  });
}

MpiQueue MpiQueue::split(std::span<const int> colors, Stream& worker) const {
  require(static_cast<int>(colors.size()) == size(), "split: there is not one color for each rank");
  meet(MpiKind::kSplit);  // has a deadline; MPI_Comm_split has none
  std::shared_ptr<Channel> part;
  worker_.submit([&] { part = std::make_shared<Channel>(channel_->wire->split(colors)); });
  worker_.synchronize();
  return {worker, std::move(part)};
}

void MpiQueue::set_nodes(std::span<const int> node_of_rank) const {
  require(static_cast<int>(node_of_rank.size()) == size(),
          "set_nodes: there is not one node for each rank");
  worker_.submit([&] { channel_->wire->set_nodes(node_of_rank); });
  worker_.synchronize();
}

WireCount MpiQueue::sent() const { return channel_->wire->sent(); }

}  // namespace tandem
