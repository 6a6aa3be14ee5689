// save(): the phases of a Saver, one after another, with the World as the road between ranks.
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/outcome.h"
#include "checkpoint/saver.h"

namespace lockstep::checkpoint {
namespace {

/// Runs a phase on this rank and returns what every rank's phase returned; when one threw, throws its Error on all.
std::vector<std::string> on_all_ranks(World& world, const std::function<std::string()>& phase) {
  std::vector<std::string> all = world.all_gather(outcome_of(name_in_messages(world), phase));
  if (const auto error = error_in(all)) throw *error;
  return results_in(std::move(all));
}

}  // namespace

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
  on_all_ranks(world, [&] {
    saver.emplace(path, tensors, world.rank(), world.size());
    return "";
  });
  std::vector<float> values;  // one tensor at a time
  const auto read = [&](std::size_t i) {
    values = read_canonical(tensors[i]);
    return std::span<const float>(values);
  };
  try {
    std::vector<std::string> results;
    for (int phase = 0; phase < Saver::kPhases; ++phase)
      results = on_all_ranks(world, [&] { return saver->run_phase(phase, results, state, read); });
  } catch (...) {
    if (world.rank() == 0) saver->discard();
    throw;
  }
}

}  // namespace lockstep::checkpoint
