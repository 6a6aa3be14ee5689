#include "train/algorithm_store.h"

#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/file.h"
#include "base/version.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kName = "algorithms.json";

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string cache = variable("LOCKSTEP_CACHE"); !cache.empty()) return cache == "none" ? "" : cache;
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/lockstep";
  return "";
}

Json read(const std::string& path) {
  if (!std::filesystem::exists(path)) return Json::object();
  try {
    Json found = Json::parse(read_file(path));
    if (found.is_object()) return found;
    log::warning("{} was not written by this program; algorithms are chosen again", path);
  } catch (const std::exception& error) {
    log::warning("{} cannot be read, so algorithms are chosen again: {}", path, error.what());
  }
  return Json::object();
}

Algorithms::Choices choices_in(const Json& file, const std::string& machine) {
  Algorithms::Choices choices;
  if (file.contains(machine) && file[machine].is_object())
    for (const auto& [key, algorithm] : file[machine].items())
      if (algorithm.is_string()) choices[key] = algorithm.get<std::string>();
  return choices;
}

/// The choices for other machines stay.
void save(const std::string& path, const std::string& machine, const Algorithms::Choices& choices) {
  Json file = read(path);
  if (choices_in(file, machine) == choices) return;
  file[machine] = choices;
  replace_file(path, file.dump(1) + "\n");
}

}  // namespace

AlgorithmStore::AlgorithmStore(const RunDirectory& run, const DeviceInfo& device, std::int64_t batch)
    : run_(run),
      machine_(fmt::format("{}; {}; lockstep {}; batch {}", device.name, fmt::join(device.libraries, ", "), version(),
                           batch)) {
  if (const std::string folder = cache_folder(); !folder.empty()) cache_ = folder + "/" + kName;
}

bool AlgorithmStore::is_on() { return !cache_folder().empty(); }

Algorithms::Choices AlgorithmStore::load() const {
  Algorithms::Choices choices = choices_in(read(run_.file(kName)), machine_);
  if (!cache_.empty()) choices.merge(choices_in(read(cache_), machine_));
  return choices;
}

void AlgorithmStore::save_in_run(const Algorithms::Choices& choices) const {
  if (!choices.empty()) save(run_.file(kName), machine_, choices);
}

void AlgorithmStore::save_in_cache(const Algorithms::Choices& choices) const {
  try {
    std::filesystem::create_directories(std::filesystem::path(cache_).parent_path());
    save(cache_, machine_, choices);
  } catch (const std::exception& error) {
    log::warning("the chosen algorithms are not stored for other runs: {}", error.what());
  }
}

}  // namespace lockstep::train
