// The global order of samples: a function of (seed, epoch, position), and never of the number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

/// The permutation of one epoch: element `position` is the sample. Fisher-Yates from the last position down: position i
/// is swapped with below(r, i + 1), where r is number i % 4 of block i / 4 of Philox(seed, shuffle, 0, epoch).
/// The identity without shuffle.
std::vector<std::uint32_t> epoch_order(std::uint32_t seed, std::uint32_t epoch, std::int64_t n_samples, bool shuffle);

/// The same where all classes are drawn equally often: element `position` is a sample of n_samples = classes.size(),
/// but samples of rare classes occur repeatedly and some of frequent ones not at all. `classes`: of each sample;
/// samples with a negative one are not drawn. Each of the K classes that have samples gets n / K of the n positions,
/// and n % K classes, different ones in each epoch, get one more. A class goes through all of its samples before one
/// occurs again. Each pass has a new order, drawn from Philox(seed, balance, class, epoch) (a pass over m samples
/// begins at the next multiple of m / 4 + 1 blocks). Then all positions are shuffled as by epoch_order. Without
/// shuffle, classes and their samples alternate in the order of their numbers.
std::vector<std::uint32_t> balanced_order(std::uint32_t seed, std::uint32_t epoch,
                                          std::span<const std::int32_t> classes, bool shuffle);

/// A contiguous part [begin, end) of a global batch. Its size differs by at most one between shards: the first
/// batch % size shards have one sample more. All shards together tile [0, batch).
struct Shard {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
Shard shard_of(std::int64_t batch, int rank, int size);

}  // namespace lockstep::data
