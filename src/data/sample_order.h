// The global order of samples: a function of (seed, epoch, position), never of ranks (DESIGN, decision 7).
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// The permutation of one epoch: element `position` is the sample. Sorted by Philox(seed, shuffle, position=index, epoch)
/// (Fisher-Yates driven by the counter); the identity without shuffle.
std::vector<std::uint32_t> epoch_order(std::uint32_t seed, std::uint32_t epoch, std::int64_t n_samples, bool shuffle);

/// One rank's contiguous share [begin, end) of a global batch of `batch` samples: shares differ by at most one,
/// the first batch % size ranks have one more, and the shares of all ranks tile [0, batch).
struct Share {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
Share share_of(std::int64_t batch, int rank, int size);

}  // namespace lockstep::data
