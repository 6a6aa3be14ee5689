#include "train/replica_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::train {

void require_equal_replicas(World& world, std::uint64_t hash, std::int64_t steps_done) {
  const std::vector<std::string> all = world.all_gather(fmt::format("{:016x} {}", hash, world.host()));
  const auto hash_of = [&](std::size_t r) { return all[r].substr(0, 16); };
  std::size_t most = 0;
  std::ptrdiff_t greatest_count = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::ptrdiff_t count = std::count_if(
        all.begin(), all.end(), [&](const std::string& other) { return other.substr(0, 16) == hash_of(r); });
    if (count > greatest_count) {
      most = r;
      greatest_count = count;
    }
  }
  for (std::size_t r = 0; r < all.size(); ++r)
    require(hash_of(r) == hash_of(most), ErrorCode::replicas_differ,
            "after step {} the weights of rank {} on {} differ from those of rank {} (hashes {} and {})", steps_done, r,
            all[r].substr(17), most, hash_of(r), hash_of(most));
}

}  // namespace lockstep::train
