// When the islands of a job meet, and what they then exchange. The outer step of optim/outer.h goes
// by shards: a rank exchanges its own with its likes on the other islands. All islands make the
// same sums in the same order, so that they have the same bits wherever they have met.
//
// An exchange begins after every `every` steps and takes effect `delay` steps later, on a stream of
// its own. Training waits for it only then. Staleness is thus bounded: there is no server, whose
// order of messages would depend on chance.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "comm/sharding/param_store.h"
#include "optim/outer.h"
#include "src/step/batch_statistics.h"
#include "src/step/staged_copies.h"

namespace tandem {

struct IslandOptions {
  int64_t every = 20;                        // steps
  int64_t delay = 0;                         // steps, below `every`
  int64_t most_elements = int64_t{1} << 24;  // of a part of a message
  OuterOptions outer{};
};

class IslandSync {
 public:
  // What a rank has of a model, and the stream that computes it. The references must outlive this.
  struct Setting {
    const ModelGroups& groups;  // with islands
    ParamStore& store;
    OuterOptimizer& optimizer;
    BatchStatistics& statistics;
    Stream& stream;
    Memory &memory, &staging;
  };
  // `wire`: of the message of the outer step: f32, bf16 or int8. `seed`: of rounding to int8.
  IslandSync(const Setting& setting, const IslandOptions& options, DType wire, uint64_t seed);

  // Call it before the first step: the islands are together.
  void begin();
  // The islands are alike after this step: they were loaded.
  void take_as_settled(int64_t step) { exchanged_at_ = settled_at_ = step; }
  // Collective over islands. Call it after step number `step`. Begins an exchange, or lets one take
  // effect, if that is due. Enqueues; but over MPI the host waits for an exchange that takes
  // effect.
  void end_step(int64_t step);
  // Collective over islands, after step number `step`: a full exchange, without delay. The state of
  // the islands' optimizers and running statistics become their means, too. Afterwards all islands
  // hold the same bits.
  void settle(int64_t step);
  // Whether the islands' hosts may wait for each other after this step, because an exchange takes
  // effect.
  bool meet_after(int64_t step) const { return (step - options_.delay) % options_.every == 0; }

  // Whether end_step() does something after this step.
  bool acts_after(int64_t step) const { return step % options_.every == 0 || meet_after(step); }

  const IslandOptions& options() const { return options_; }
  // Bytes of the exchanges that have taken effect.
  const WireCount& exchanged() const { return exchanged_; }
  // How far the islands moved between two exchanges: the norm of d over that of the values.
  struct Drift {
    Event done;   // the tensor may be read
    Tensor sums;  // f64 [2], in host memory: of squares
    double value() const;
  };
  // The drift of the exchange that has taken effect since the last call, if any.
  std::optional<Drift> take_drift() { return std::exchange(drift_, std::nullopt); }

 private:
  struct Exchange {
    int64_t step = 0;           // after which it began
    Tensor moved{}, message{};  // f32 [padded]; the same, or rounded
    Tensor before{};            // f32 [elements]: the values then; empty without delay
    Tensor noise{};             // of rounding to int8
    Event there{};
  };

  int64_t unit() const { return kBlockElements * islands_.size(); }  // divides messages
  Tensor message(int64_t elements);
  Event sum(const Tensor& message, EightBits eight_bits = {});
  EightBits noise(Exchange& exchange);
  void start_exchange(int64_t step, bool may_wait);
  void finish_exchange();
  void measure_drift(const Tensor& d);
  void average(std::span<const Tensor> arrays);

  Setting setting_;
  IslandOptions options_;
  DType wire_;
  uint64_t seed_;
  Group& islands_;
  Memory scratch_;
  StagedCopies copies_;
  bool has_begun_ = false;
  std::optional<Exchange> exchange_{};
  int64_t exchanged_at_ = -1, settled_at_ = -1;  // the step after which the last one began
  WireCount exchanged_{};
  std::optional<Drift> drift_{};
};

}  // namespace tandem
