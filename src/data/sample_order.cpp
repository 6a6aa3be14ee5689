#include "data/sample_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/philox.h"

namespace lockstep::data {

namespace {

/// A Fisher-Yates shuffle with the random numbers from block `first_block` on.
void shuffle_samples(std::span<std::uint32_t> samples, const Philox& philox, std::uint64_t first_block = 0) {
  std::uint64_t block_index = ~std::uint64_t{0};
  std::array<std::uint32_t, 4> block{};
  for (std::size_t i = samples.size(); i-- > 1;) {
    if (i / 4 != block_index) block = philox.block(first_block + (block_index = i / 4));
    std::swap(samples[i], samples[Philox::below(block[i % 4], static_cast<std::uint32_t>(i + 1))]);
  }
}

/// The samples of a class that is not empty.
struct ClassSamples {
  std::uint32_t number = 0;
  std::vector<std::uint32_t> samples;
};
std::vector<ClassSamples> samples_by_class(std::span<const std::int32_t> classes) {
  std::map<std::int32_t, std::vector<std::uint32_t>> by_class;
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (classes[i] >= 0) by_class[classes[i]].push_back(static_cast<std::uint32_t>(i));
  std::vector<ClassSamples> out;
  for (auto& [number, samples] : by_class) out.push_back({static_cast<std::uint32_t>(number), std::move(samples)});
  return out;
}

/// The first `n` draws of a class.
std::vector<std::uint32_t> draw(const ClassSamples& of, std::size_t n, const Philox& philox, bool shuffle) {
  std::vector<std::uint32_t> drawn;
  drawn.reserve(n + of.samples.size());
  const std::uint64_t blocks_per_turn = of.samples.size() / 4 + 1;
  for (std::uint64_t turn = 0; drawn.size() < n; ++turn) {
    const std::size_t begin = drawn.size();
    drawn.insert(drawn.end(), of.samples.begin(), of.samples.end());
    if (shuffle) shuffle_samples(std::span(drawn).subspan(begin), philox, turn * blocks_per_turn);
  }
  drawn.resize(n);
  return drawn;
}

}  // namespace

std::vector<std::uint32_t> epoch_order(std::uint32_t seed, std::uint32_t epoch, std::int64_t n_samples, bool shuffle) {
  require(n_samples >= 0 && n_samples <= kMaxSamples, ErrorCode::internal,
          "{} samples are too many: they cannot be numbered with 32 bits", n_samples);
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n_samples));
  std::iota(order.begin(), order.end(), 0u);
  if (!shuffle) return order;
  shuffle_samples(order, Philox(seed, RandomPurpose::shuffle, 0, epoch));
  return order;
}

std::vector<std::uint32_t> balanced_order(std::uint32_t seed, std::uint32_t epoch,
                                          std::span<const std::int32_t> classes, bool shuffle) {
  const std::vector<ClassSamples> by_class = samples_by_class(classes);
  const std::size_t n = classes.size(), n_classes = by_class.size();
  require(n_classes > 0, ErrorCode::internal, "no sample has a class, so that none can be drawn");
  const std::size_t extra = n % n_classes;
  const std::size_t first_extra = shuffle ? std::uint64_t{epoch} * extra % n_classes : 0;
  std::vector<std::vector<std::uint32_t>> draws;
  for (std::size_t k = 0; k < n_classes; ++k) {
    const std::size_t has_extra = (k + n_classes - first_extra) % n_classes < extra ? 1 : 0;
    const Philox philox(seed, RandomPurpose::balance, by_class[k].number, epoch);
    draws.push_back(draw(by_class[k], n / n_classes + has_extra, philox, shuffle));
  }
  std::vector<std::uint32_t> order(n);
  for (std::size_t position = 0, k = 0, turn = 0; position < n; ++position) {
    while (turn >= draws[k].size()) {  // in the last turn, some classes have no draw left
      ++k;
      if (k == n_classes) k = 0, ++turn;
    }
    order[position] = draws[k][turn];
    if (++k == n_classes) k = 0, ++turn;
  }
  if (shuffle) shuffle_samples(order, Philox(seed, RandomPurpose::shuffle, 0, epoch));
  return order;
}

Shard shard_of(std::int64_t batch, int rank, int size) {
  require(batch >= 0 && size > 0 && rank >= 0 && rank < size, ErrorCode::internal,
          "there is no shard {} of {} in {} samples", rank, size, batch);
  const std::int64_t base = batch / size, more = batch % size;
  const std::int64_t begin = rank * base + std::min<std::int64_t>(rank, more);
  return {begin, begin + base + (rank < more ? 1 : 0)};
}

}  // namespace lockstep::data
