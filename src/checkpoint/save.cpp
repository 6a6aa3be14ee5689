// save(): runs the phases of a Saver one after the other. The ranks exchange their results through the World.
#include <nlohmann/json.hpp>
#include <optional>

#include "base/outcome.h"
#include "base/stop_signal.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/saver.h"

namespace lockstep::checkpoint {
std::vector<float> read_canonical(const TensorSource& source) {
  std::vector<float> stored(source.n_read());
  source.read(stored);
  if (!source.unpack) return stored;
  std::vector<float> canonical(source.n_canonical());
  source.unpack(stored, canonical);
  return canonical;
}

void save(const std::string& path, const std::vector<TensorSource>& tensors, const StateJson& state, World& world) {
  std::optional<Saver> saver;
  all_agree(world, [&] {
    saver.emplace(path, tensors, world.rank(), world.size());
    return "";
  });
  std::vector<float> values;  // one tensor at a time
  const auto read = [&](std::size_t i) {
    throw_if_stopped();
    values = read_canonical(tensors[i]);
    return std::span<const float>(values);
  };
  try {
    std::vector<std::string> results;
    for (int phase = 0; phase < Saver::kPhases; ++phase)
      results = all_agree(world, [&] { return saver->run_phase(phase, results, state, read); });
  } catch (...) {
    if (world.rank() == 0) saver->discard();
    throw;
  }
}

}  // namespace lockstep::checkpoint
