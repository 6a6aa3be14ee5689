// save(): the steps of a Saver, with the World as the road between ranks.
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/saver.h"
#include "lockstep/error.h"

namespace lockstep::checkpoint {
namespace {

/// Runs a step on this rank and returns what every rank's step returned; when one threw, throws its Error on all ranks.
template <typename Step>
std::vector<std::string> on_all_ranks(World& world, Step step) {
  constexpr char kDone = 'd', kFailed = 'f';
  std::string mine;
  try {
    mine = kDone + std::string(step());
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const auto code = known ? known->code() : ErrorCode::internal;
    const std::string where =
        world.size() > 1 ? fmt::format("rank {} on {}: ", world.rank(), world.host()) : std::string();
    mine = kFailed + fmt::format("{} {}{}", static_cast<int>(code), where, error.what());
  }
  std::vector<std::string> all = world.all_gather(mine);
  for (std::string& text : all) {
    if (text.at(0) == kFailed) {
      const auto space = text.find(' ');
      throw Error(static_cast<ErrorCode>(std::stoi(text.substr(1, space - 1))), text.substr(space + 1));
    }
    text.erase(0, 1);
  }
  return all;
}

}  // namespace

void save(const std::string& path, const std::vector<TensorSource>& tensors, const StateJson& state, World& world) {
  std::optional<Saver> saver;
  on_all_ranks(world, [&] {
    saver.emplace(path, tensors, world.rank(), world.size());
    return "";
  });
  const bool first = world.rank() == 0;
  try {
    const auto places = on_all_ranks(world, [&] { return first ? saver->create(state) : ""; });
    std::vector<float> values;  // one tensor at a time
    const auto hashes = on_all_ranks(world, [&] {
      return saver->write_part(places[0], [&](std::size_t i) {
        values.resize(static_cast<std::size_t>(tensors[i].shape.n_elements()));
        tensors[i].read(values);
        return std::span<const float>(values);
      });
    });
    const auto length = on_all_ranks(world, [&] { return first ? saver->write_metadata(hashes) : ""; });
    const auto blocks = on_all_ranks(world, [&] { return saver->hash_blocks(length[0]); });
    on_all_ranks(world, [&] {
      if (first) saver->publish(blocks);
      return "";
    });
  } catch (...) {
    if (first) saver->discard();
    throw;
  }
}

}  // namespace lockstep::checkpoint
