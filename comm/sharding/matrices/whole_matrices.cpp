#include "comm/sharding/matrices/whole_matrices.h"

#include <algorithm>
#include <numeric>

#include "src/device/copy.h"
#include "src/kernels/convert.h"
#include "src/kernels/elementwise.h"

namespace tandem {

namespace {

// to = factor * from
void scale(Stream& stream, double factor, const Tensor& from, const Tensor& to) {
  on_device(stream, touching(from, to), [&](auto device) {
    const auto run = [&]<class T>(const T* data) {
      kernels::scale(device, to.elements(), static_cast<float>(factor), data, to.data<float>());
    };
    from.dtype() == DType::kBf16 ? run(from.data<Bf16>()) : run(from.data<float>());
  });
}

Tensor part_of(const Tensor& flat, Range range) { return flat.slice(range.begin, range.count()); }

}  // namespace

WholeMatrices::WholeMatrices(const ModelLayout& layout, const GradientSync& gradients,
                             Timeline& timeline, Memory& memory)
    : layout_(layout), gradients_(gradients), timeline_(timeline), scratch_(memory.scratch()) {
  for (const Segment& segment : layout.flat().segments()) {
    if (!segment.matrix || segment.frozen) {
      continue;
    }
    int64_t at = segment.offset;
    for (const Piece& piece : pieces_of(*layout.parameters()[segment.parameter])) {
      const Shape& shape = piece.slice.extent();
      require(shape.rank() == 2 && !segment.cut, piece.name, " ", shape, " is no whole matrix");
      matrices_.push_back({.bucket = segment.bucket,
                           .range = {at, at + shape.elements()},
                           .rows = shape[0],
                           .columns = shape[1]});
      at += shape.elements();
      elements_ += shape.elements();
    }
    if (layout.place(segment.bucket).shards_state()) {
      group_ = &layout.group(segment.bucket);
    }
  }
  if (group_) {
    choose_owners();
    theirs_ = message(true);
    own_ = message(false);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (matrices_[i].owner == group_->part()) {
        std::ranges::copy_if(own_.runs, std::back_inserter(runs_of_own_.emplace_back()),
                             [&](const Run& run) { return run.matrix == i; });
      }
    }
  }
}

void WholeMatrices::choose_owners() {
  const auto work = [](const Matrix& matrix) {  // of its products
    return static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns) *
           static_cast<double>(std::min(matrix.rows, matrix.columns));
  };
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return work(matrices_[i]); });
  std::vector<double> load(static_cast<size_t>(group_->parts()));
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += work(matrices_[i]);
    matrices_[i].owner = static_cast<int>(least - load.begin());
  }
}

// is_sent: of this rank's shard to all owners; otherwise of this rank's matrices from all shards.
WholeMatrices::Message WholeMatrices::message(bool is_sent) const {
  Message message;
  int64_t at = 0;
  for (int other = 0; other < group_->parts(); ++other) {
    const int owner = is_sent ? other : group_->part(), holder = is_sent ? group_->part() : other;
    const int64_t begin = at;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Matrix& matrix = matrices_[i];
      const Range part = layout_.flat().part(layout_.bucket(matrix.bucket), holder);
      const Range here = intersection(matrix.range, part);
      if (matrix.owner == owner && here.count() > 0) {
        message.runs.push_back({i, here, {at, at + here.count()}});
        at += here.count();
      }
    }
    message.parts.push_back({begin, at});
  }
  return message;
}

Tensor WholeMatrices::gradients(const Run& run) const {
  const int64_t bucket = matrices_[run.matrix].bucket;
  return slice_of(gradients_.gradients(bucket), layout_.place(bucket).gradients().begin,
                  run.in_flat);
}

void WholeMatrices::exchange(Stream& stream, const Tensor& in, const Message& sent,
                             const Tensor& out, const Message& received) const {
  Stream& communication = group_->stream();
  communication.wait(stream.record());
  group_->exchange_parts(in, sent.parts, out, received.parts, elements_ * size_of(in.dtype()));
  timeline_.wait(stream, communication.record());
}

// Computes a matrix of this rank where it stands in the message, or in a copy if it is in pieces.
void WholeMatrices::apply(Stream& stream, std::span<const Run> runs, const Function& function,
                          const Tensor& message) {
  const Matrix& whole = matrices_[runs[0].matrix];
  const Shape shape{whole.rows, whole.columns};
  if (runs.size() == 1) {
    return function.apply(stream, part_of(message, runs[0].in_message).reshape(shape));
  }
  const Tensor copied =
      Tensor::empty(scratch_, {shape.elements()}, function.dtype, MemoryClass::kWorkspace);
  const auto piece = [&](const Run& run) {
    return slice_of(copied, whole.range.begin, run.in_flat);
  };
  for (const Run& run : runs) {
    copy(stream, part_of(message, run.in_message), piece(run));
  }
  function.apply(stream, copied.reshape(shape));
  for (const Run& run : runs) {
    copy(stream, piece(run), part_of(message, run.in_message));
  }
}

void WholeMatrices::transform(Stream& stream, const Function& function) {
  const auto room = [&](int64_t elements) {
    return Tensor::empty(scratch_, {elements}, function.dtype, MemoryClass::kWorkspace);
  };
  const auto factor_of = [&](size_t matrix) {
    return function.factor(matrices_[matrix].rows, matrices_[matrix].columns);
  };
  if (!group_) {
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Tensor whole = gradients({.matrix = i, .in_flat = matrices_[i].range});
      const Tensor rounded = room(whole.elements());
      convert(stream, whole, rounded);
      function.apply(stream, rounded.reshape({matrices_[i].rows, matrices_[i].columns}));
      scale(stream, factor_of(i), rounded, whole);
    }
    return;
  }
  const Tensor outgoing = room(theirs_.elements()), incoming = room(own_.elements());
  for (const Run& run : theirs_.runs) {
    convert(stream, gradients(run), part_of(outgoing, run.in_message));
  }
  exchange(stream, outgoing, theirs_, incoming, own_);
  for (const std::vector<Run>& runs : runs_of_own_) {
    apply(stream, runs, function, incoming);
  }
  exchange(stream, incoming, own_, outgoing, theirs_);
  for (const Run& run : theirs_.runs) {
    scale(stream, factor_of(run.matrix), part_of(outgoing, run.in_message), gradients(run));
  }
}

}  // namespace tandem
