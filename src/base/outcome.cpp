#include "base/outcome.h"

#include "base/failure.h"

namespace lockstep {
namespace {
constexpr char kDone = 'd', kFailed = 'f';
}

std::string name_in_messages(const World& world) {
  return world.size() > 1 ? fmt::format("rank {} on {}: ", world.rank(), world.host()) : "";
}

std::string outcome_of(const std::string& who, const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const std::exception& error) {
    const Error known = as_error(error);
    return kFailed + fmt::format("{} {}{}", static_cast<int>(known.code()), who, known.what());
  }
}

std::optional<Error> error_in(const std::vector<std::string>& outcomes) {
  for (const std::string& text : outcomes) {
    if (text.at(0) != kFailed) continue;
    const auto space = text.find(' ');
    return Error(static_cast<ErrorCode>(std::stoi(text.substr(1, space - 1))), text.substr(space + 1));
  }
  return std::nullopt;
}

std::vector<std::string> results_in(std::vector<std::string> outcomes) {
  for (std::string& text : outcomes) text.erase(0, 1);
  return outcomes;
}

std::vector<std::string> all_agree(const std::function<std::vector<std::string>(const std::string& mine)>& gather,
                                   const std::string& who, const std::function<std::string()>& work) {
  std::vector<std::string> all = gather(outcome_of(who, work));
  if (const auto error = error_in(all)) throw *error;
  return results_in(std::move(all));
}

std::vector<std::string> all_agree(World& world, const std::function<std::string()>& work) {
  return all_agree([&world](const std::string& mine) { return world.all_gather(mine); }, name_in_messages(world), work);
}

}  // namespace lockstep
