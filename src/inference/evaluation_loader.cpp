#include "inference/evaluation_loader.h"

#include <algorithm>

namespace lockstep::inference {

std::int64_t evaluated_samples(const Config& config, const data::Dataset& set) {
  const std::int64_t n = set.info().n_samples, most = config.evaluation.max_samples;
  return most > 0 ? std::min(n, most) : n;
}

data::LoaderOptions evaluation_loader(const Config& config, const data::Dataset& set, std::int64_t capacity,
                                      const World& world, Backend& backend) {
  const std::int64_t n = evaluated_samples(config, set);
  const std::int64_t batch = capacity * world.size();
  return {.global_batch = batch,
          .capacity = capacity,
          .first_shard = world.rank(),
          .total_shards = world.size(),
          .seed = config.run.seed,
          .shuffle = false,
          .drop_last = false,
          .readers = config.data.readers,
          .prefetch = 2,
          .last_step = (n + batch - 1) / batch,
          .max_samples = n,
          .backend = &backend};
}

}  // namespace lockstep::inference
