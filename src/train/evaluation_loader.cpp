#include "train/evaluation_loader.h"

#include <algorithm>

namespace lockstep::train {

data::LoaderOptions evaluation_loader(const Config& config, const data::Dataset& set, std::int64_t capacity,
                                      const World& world, Backend& backend) {
  std::int64_t n = set.info().n_samples;
  if (config.evaluation.max_samples > 0) n = std::min(n, config.evaluation.max_samples);
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

}  // namespace lockstep::train
