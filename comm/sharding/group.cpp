#include "comm/sharding/group.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "src/core/error.h"
#include "src/device/copy.h"
#include "src/kernels/convert.h"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

Tensor own_part(const Collectives& group, const Tensor& whole) {
  const int64_t n = whole.elements() / group.size();
  return whole.slice(group.rank() * n, n);
}

void require_blocks(const Tensor& elements) {
  require(elements.elements() % kBlockElements == 0, "eight bits: ", elements.shape(),
          " are no whole blocks");
}

}  // namespace

Group::Group(Control& control, Collectives& collectives, Memory& memory,
             const std::vector<int>& node_of_rank, Sharing sharing)
    : control_(control), collectives_(collectives), memory_(memory), sharing_(sharing) {
  require(std::ssize(node_of_rank) == size(), "Group: there is not one node for each rank");
  require(control.rank() == rank() && control.size() == size(),
          "Group: control messages are of another group");
  control_.set_nodes(node_of_rank);
  collectives_.set_nodes(node_of_rank);
  std::map<int, int> ranks_on;  // the number of ranks on each node
  std::vector<int> local;       // each rank's place on its node
  for (const int node : node_of_rank) {
    local.push_back(ranks_on[node]++);
  }
  const int nodes = static_cast<int>(ranks_on.size()), ranks = ranks_on.begin()->second;
  const bool even = std::ranges::all_of(ranks_on, [&](auto node) { return node.second == ranks; });
  node_size_ = even ? ranks : 0;
  if (sharing == Sharing::kNode && !even) {
    fail(ExitCode::kConfig,
         "dist.shard = node needs nodes with equal numbers of ranks; start as many ranks on every "
         "node, set dist.node_size, or use dist.shard = world");
  }
  if (even && nodes > 1 && ranks > 1) {
    inside_ = collectives_.split(node_of_rank);
    between_ = collectives_.split(local);
  }
  parts_ = sharing == Sharing::kNode ? ranks : size();
  if (sharing == Sharing::kWorld) {
    std::map<int, int> nodes_before;  // by place on a node
    for (int other = 0; other < size(); ++other) {
      const int place = local[static_cast<size_t>(other)];
      part_of_rank_.push_back(inside_ ? place * nodes + nodes_before[place]++ : other);
    }
    part_ = part_of_rank_[rank()];
  } else {
    part_of_rank_.resize(static_cast<size_t>(ranks));
    std::iota(part_of_rank_.begin(), part_of_rank_.end(), 0);
    part_ = local[rank()];
    replica_ = inside_ ? between_->rank() : nodes > 1 ? rank() : 0;
  }
}

// Runs work(stream) in the order of stream(), on the tensors' device. If stream() is a host thread,
// that thread runs the work and waits for the device. A dry stream only charges the time.
template <class F>
void Group::enqueue(Device device, F work) const {
  if (stream().device() == Device::kCuda || stream().is_dry()) {
    return work(stream());
  }
  stream().submit([device, work] {
    Stream own = Stream::compute(device);
    work(own);
    own.synchronize();
  });
}

// Memory for n elements, valid until the next call. Its users run one after another on stream(), so
// they can share it.
Tensor Group::scratch(int64_t n, DType dtype) const {
  const int64_t bytes = n * size_of(dtype);
  if (!scratch_ || scratch_.elements() < bytes) {
    if (scratch_) {
      wait(stream().record());  // for the last user
      scratch_ = Tensor();
    }
    // zeros() waits for the memory, which belongs to the compute stream: stream() uses it at once.
    scratch_ = Tensor::zeros(memory_, {bytes}, DType::kU8, MemoryClass::kStaging);
  }
  return scratch_.view(0, {n}, dtype);
}

// out = in, of the same dtype or converted.
void Group::assign(const Tensor& in, const Tensor& out) const {
  if (in.raw() == out.raw() || in.elements() == 0) {
    return;
  }
  enqueue(in.device(), [in, out](Stream& stream) {
    in.dtype() == out.dtype() ? copy(stream, in, out) : convert(stream, in, out);
  });
}

void Group::write_blocks(const Tensor& in, const BlockRounding& rounding,
                         const Tensor& message) const {
  require_blocks(in);
  enqueue(in.device(), [in, rounding, message](Stream& stream) {
    on_device(stream, touching(in, message), in.dtype(), [&]<class T>(auto device) {
      kernels::write_blocks(device, in.elements(), in.data<T>(), rounding, message.data<int32_t>());
    });
  });
}

void Group::sum_blocks(int parts, const Tensor& messages, const Tensor& out) const {
  require_blocks(out);
  enqueue(out.device(), [parts, messages, out](Stream& stream) {
    on_device(stream, touching(messages, out), out.dtype(), [&]<class T>(auto device) {
      kernels::sum_blocks(device, parts, out.elements(), messages.data<int32_t>(), out.data<T>());
    });
  });
}

// Does what Collectives::all_gather does, also in eight bits.
void Group::gather(Collectives& group, const Tensor& in, const Tensor& out,
                   const EightBits& eight_bits) const {
  if (!eight_bits) {
    return group.all_gather(in, out);
  }
  const Tensor all = scratch(block_words(out.elements()), DType::kI32);
  const Tensor own = own_part(group, all);
  write_blocks(in, *eight_bits, own);
  group.all_gather(own, all);
  sum_blocks(1, all, out);
}

// Does what Collectives::reduce_scatter does, also of bf16 into bf16 or f32, and in eight bits.
// These are always added in the order of ranks, f32 only if `in_order`.
void Group::scatter_sum(Collectives& group, const Tensor& in, const Tensor& out,
                        const EightBits& eight_bits, bool in_order) const {
  if (eight_bits) {
    const int64_t words = block_words(in.elements());
    const Tensor both = scratch(2 * words, DType::kI32);
    const Tensor own = both.slice(0, words), all = both.slice(words, words);
    write_blocks(in, *eight_bits, own);
    group.all_to_all(own, all);
    return sum_blocks(group.size(), all, out);
  }
  if (in.dtype() != DType::kBf16 && !in_order) {
    return group.reduce_scatter(in, out);
  }
  const Tensor all = scratch(in.elements(), in.dtype());
  group.all_to_all(in, all);
  enqueue(in.device(), [parts = group.size(), all, out](Stream& stream) {
    on_device(stream, touching(all, out), [&](auto device) {
      const auto add = [&]<class From, class To>(const From* from, To* to) {
        kernels::sum_parts(device, parts, out.elements(), from, to);
      };
      if (all.dtype() == DType::kF32) {
        add(all.data<float>(), out.data<float>());
      } else if (out.dtype() == DType::kF32) {
        add(all.data<Bf16>(), out.data<float>());
      } else {
        add(all.data<Bf16>(), out.data<Bf16>());
      }
    });
  });
}

// Does what Collectives::all_reduce does, also of bf16 and in eight bits.
void Group::sum(Collectives& group, const Tensor& inout, EightBits eight_bits,
                bool in_order) const {
  if (!eight_bits && inout.dtype() != DType::kBf16 && !in_order) {
    return group.all_reduce(inout);
  }
  if (group.size() > 1) {
    const Tensor own = own_part(group, inout);
    scatter_sum(group, inout, own, eight_bits, in_order);
    if (eight_bits) {
      ++eight_bits->turn;
    }
    gather(group, own, inout, eight_bits);
  }
}

void Group::require_parts(const char* collective, const Tensor& whole, const Tensor& part) const {
  require(whole.elements() % size() == 0 && whole.elements() == part.elements() * parts_,
          collective, ": ", whole.shape(), " and shards of ", part.shape(), ", with ", parts_,
          " shards and ", size(), " ranks");
}

void Group::require_divisible(const Tensor& whole) const {
  require(whole.elements() % size() == 0, "all_reduce: ", whole.shape(), " is no multiple of ",
          size(), " ranks");
}

void Group::all_reduce_in_order(const Tensor& inout, const EightBits& eight_bits) const {
  require_divisible(inout);
  sum(collectives_, inout, eight_bits, true);
}

void Group::all_reduce(const Tensor& inout, const EightBits& eight_bits) const {
  require_divisible(inout);
  if (is_flat()) {
    return sum(collectives_, inout, eight_bits);
  }
  const Tensor chunk = own_part(*inside_, inout);
  scatter_sum(*inside_, inout, chunk);
  sum(*between_, chunk, eight_bits);
  inside_->all_gather(chunk, inout);
}

void Group::reduce_scatter(const Tensor& in, const Tensor& out, const EightBits& eight_bits) const {
  require_parts("reduce_scatter", in, out);
  require(out.dtype() == (in.dtype() == DType::kBf16 ? DType::kF32 : in.dtype()),
          "reduce_scatter: ", name_of(in.dtype()), " into ", name_of(out.dtype()));
  if (parts_ == 1) {
    sum(collectives_, in, eight_bits);
    assign(in, out);
  } else if (is_flat()) {
    scatter_sum(collectives_, in, out, eight_bits);
  } else if (sharing_ == Sharing::kWorld) {
    const Tensor chunk = own_part(*inside_, in);
    scatter_sum(*inside_, in, chunk);
    scatter_sum(*between_, chunk, out, eight_bits);
  } else {
    const Tensor chunk = in.dtype() == out.dtype() ? out : own_part(*inside_, in);
    scatter_sum(*inside_, in, chunk);
    sum(*between_, chunk, eight_bits);
    assign(chunk, out);
  }
}

void Group::all_gather(const Tensor& in, const Tensor& out, const EightBits& eight_bits) const {
  require_parts("all_gather", out, in);
  require(in.dtype() == out.dtype(), "all_gather: ", name_of(in.dtype()), " into ",
          name_of(out.dtype()));
  if (parts_ == 1) {
    assign(in, out);
  } else if (is_flat()) {
    gather(collectives_, in, out, eight_bits);
  } else if (sharing_ == Sharing::kWorld) {
    const Tensor chunk = own_part(*inside_, out);
    gather(*between_, in, chunk, eight_bits);
    inside_->all_gather(chunk, out);
  } else {
    inside_->all_gather(in, out);
  }
}

void Group::exchange_parts(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                           std::span<const Range> received, int64_t agreed_bytes) const {
  std::vector<Range> sent_to, received_from;
  for (const int part : part_of_rank_) {
    sent_to.push_back(sent[part]);
    received_from.push_back(received[part]);
  }
  Collectives& holders = sharing_ == Sharing::kNode && inside_ ? *inside_ : collectives_;
  holders.all_to_all_v(in, sent_to, out, received_from, agreed_bytes);
}

WireCount Group::wire() const {
  WireCount count = collectives_.wire();
  count += control_.wire();
  if (!is_flat()) {
    count += inside_->wire();
    count += between_->wire();
  }
  return count;
}

std::vector<int> nodes_of(const std::vector<std::string>& host_of_rank, int node_size) {
  const auto ranks = static_cast<int>(host_of_rank.size());
  if (node_size < 0 || (node_size > 0 && ranks % node_size != 0)) {
    fail(ExitCode::kConfig, "dist.node_size = ", node_size, " does not divide the ", ranks,
         " ranks; choose a divisor, or 0 for the hosts");
  }
  std::map<std::string, int> numbers;
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) {
    nodes.push_back(
        node_size > 0
            ? rank / node_size
            : numbers.emplace(host_of_rank[rank], static_cast<int>(numbers.size())).first->second);
  }
  return nodes;
}

std::vector<int> nodes_of(Control& job, const std::string& host, int node_size) {
  return nodes_of(job.all_gather(host), node_size);
}

}  // namespace tandem
