#include "train/gradient_accumulator.h"

#include <cstddef>

namespace lockstep::train {
namespace {

constexpr std::size_t kLossElements = sizeof(LossSums) / sizeof(double);

}  // namespace

GradientAccumulator::GradientAccumulator(const StepPlan& plan, Backend& backend, Stream& stream,
                                         const graph::GradientArena& gradients, LossSums* loss, LossSums* losses,
                                         LossSums* local)
    : plan_(plan),
      backend_(backend),
      is_tree_(plan.batch().is_tree && !plan.shards_gradients()),
      losses_(losses),
      local_(local),
      layout_(gradients.layout),
      result_{gradients.data, loss} {
  sum_losses_ = backend.make(OrderedSumDescription{.dtype = DType::fp64});
  if (plan.n_losses() > 0) loss_merges_ = plan.batch().order().merges;
  if (!is_tree_ && !plan.shards_gradients()) return;
  const auto parts = layout_.parts();
  for (std::size_t part = 0; part < parts.size(); ++part)
    sum_gradients_[part] = backend.make(OrderedSumDescription{.dtype = part == 0 ? layout_.narrow : DType::fp32});
  if (plan.shards_gradients()) {
    const std::size_t size_bytes = static_cast<std::size_t>(plan.n_kept_sums()) * plan.summed_bytes();
    memory_ = backend.allocate(size_bytes, "sums of gradients");
    backend.fill_zero(memory_->data(), size_bytes, stream);  // clears the padding between tensors
    return;
  }
  memory_ = backend.allocate(plan.memory().partial_sums, "partial sums of gradients");
  const auto buffer = [&](std::size_t number) {
    std::byte* begin = static_cast<std::byte*>(memory_->data()) + number * plan.partial_sum_bytes();
    return Buffer{begin,
                  reinterpret_cast<LossSums*>(begin + plan.partial_sum_bytes() - graph::aligned(sizeof(LossSums)))};
  };
  std::size_t n_open = 0;
  const std::vector<int> merges = plan.batch().order_in_rank().merges;
  for (std::size_t micro_batch = 0; micro_batch < merges.size(); ++micro_batch) {
    const auto n_merged = static_cast<std::size_t>(merges[micro_batch]);
    Leaf leaf;
    for (std::size_t i = n_open - n_merged; i < n_open; ++i) {
      for (std::size_t part = 0; part < parts.size(); ++part)
        leaf.open_gradients[part].push_back(buffer(i).gradients + layout_.offset_bytes(parts[part].begin));
      leaf.open_losses.push_back(buffer(i).loss);
    }
    n_open -= n_merged;
    leaf.sum = micro_batch + 1 == merges.size() ? result_ : buffer(n_open++);
    leaves_.push_back(std::move(leaf));
  }
}

graph::ParameterGradients GradientAccumulator::target(int micro_batch) const {
  if (plan_.shards_gradients()) return {{result_.gradients, layout_}, GradientMode::overwrite};
  if (!is_tree_)
    return {{result_.gradients, layout_}, micro_batch == 0 ? GradientMode::overwrite : GradientMode::accumulate};
  // A micro-batch to which no open sum is added is already a sum by itself.
  const Leaf& leaf = leaves_[static_cast<std::size_t>(micro_batch)];
  return {{leaf.open_losses.empty() ? leaf.sum.gradients : result_.gradients, layout_}, GradientMode::overwrite};
}

void GradientAccumulator::add(const LossSums* loss, std::span<const void* const> open, LossSums* target,
                              Stream& stream) {
  sum_losses_->apply({.value = loss, .open = open, .target = target, .n_elements = kLossElements}, {}, stream);
}

void GradientAccumulator::add_loss(int micro_batch, Stream& stream) {
  if (is_tree_) {
    const Leaf& leaf = leaves_[static_cast<std::size_t>(micro_batch)];
    return add(result_.loss, leaf.open_losses, leaf.sum.loss, stream);
  }
  if (!plan_.shards_gradients()) return;
  const BatchShape& batch = plan_.batch();
  const std::array<const void*, 1> before{local_};
  add(result_.loss, std::span(before).first(micro_batch == 0 ? 0 : 1), local_, stream);
  if (!batch.is_interleaved) {
    add(local_, {}, result_.loss, stream);
    return;
  }
  // Others have zeros there, so that their sum over ranks is exact.
  if (micro_batch == 0)
    backend_.fill_zero(losses_, static_cast<std::size_t>(plan_.n_losses()) * sizeof(LossSums), stream);
  add(result_.loss, {}, losses_ + batch.shard_of(batch.rank, micro_batch), stream);
}

void GradientAccumulator::sum_losses(Stream& stream) {
  const auto n_leaves = static_cast<std::size_t>(plan_.n_losses());
  std::array<const void*, OrderedSumCalls::Open::kMax> open;  // a stack
  std::size_t n_open = 0;
  for (std::size_t i = 0; i < n_leaves; ++i) {
    n_open -= static_cast<std::size_t>(loss_merges_[i]);
    const std::span<const void* const> merged =
        std::span(open).subspan(n_open, static_cast<std::size_t>(loss_merges_[i]));
    LossSums* const target = i + 1 == n_leaves ? result_.loss : losses_ + i;
    if (target != losses_ + i || !merged.empty()) add(losses_ + i, merged, target, stream);
    open[n_open++] = target;
  }
}

TypedPointer GradientAccumulator::sum_at(std::size_t element) const {
  if (!plan_.shards_gradients()) return graph::GradientArena{result_.gradients, layout_}.at(element);
  return graph::GradientArena{static_cast<std::byte*>(memory_->data()), plan_.summed_layout()}.at(
      plan_.summed_at(element));
}

const void* GradientAccumulator::gradients_of(const OptimizerDescription& update) const {
  if (!update.gradients_are_sharded) return sum_at(update.first).data;
  const graph::GradientLayout layout = plan_.summed_layout();  // which the update counts from the first element on
  const std::size_t first = update.gradient_dtype == DType::fp32 ? layout.n_narrow : 0;
  return static_cast<const std::byte*>(memory_->data()) + layout.offset_bytes(first) -
         first * size_bytes(update.gradient_dtype);
}

void GradientAccumulator::keep_sum(std::size_t bucket, bool is_first, Stream& stream) {
  const comm::Bucket& b = plan_.buckets()[bucket];
  const ElementRange mine = b.shard(plan_.batch().rank);
  const std::size_t part = b.begin < layout_.n_narrow ? 0 : 1;
  const std::byte* const first = result_.gradients + layout_.offset_bytes(b.begin);
  const TypedPointer kept = sum_at(mine.begin);
  const std::array<const void*, 1> before{kept.data};
  sum_gradients_[part]->apply({.value = first + (mine.begin - b.begin) * size_bytes(b.dtype),
                               .open = std::span(before).first(is_first ? 0 : 1),
                               .target = kept.data,
                               .n_elements = mine.n_elements},
                              {}, stream);
}

void GradientAccumulator::add_gradients(int micro_batch, ElementRange range, Stream& stream) {
  if (!is_tree_) return;
  const Leaf& leaf = leaves_[static_cast<std::size_t>(micro_batch)];
  if (leaf.open_losses.empty()) return;
  const auto parts = layout_.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ElementRange part = overlap(range, parts[i]);
    if (part.n_elements == 0) continue;
    const std::size_t offset = layout_.offset_bytes(parts[i].begin);
    sum_gradients_[i]->apply({.value = result_.gradients + offset,
                              .open = leaf.open_gradients[i],
                              .target = leaf.sum.gradients + offset,
                              .begin = part.begin - parts[i].begin,
                              .n_elements = part.n_elements},
                             {}, stream);
  }
}

}  // namespace lockstep::train
