#include "train/algorithm_store.h"

#include <fmt/ranges.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "base/signals.h"
#include "base/version.h"
#include "lockstep/error.h"
#include "lockstep/log.h"

namespace lockstep::train {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kName = "algorithms.json";

std::string cache_folder() {
  if (const std::string cache = environment("LOCKSTEP_CACHE"); !cache.empty()) return cache == "none" ? "" : cache;
  if (const std::string home = environment("HOME"); !home.empty()) return home + "/.cache/lockstep";
  return "";
}

/// Prints each text only once, since the files are read and written several times.
void warn_once(const std::string& text) {
  static std::set<std::string> printed;
  if (printed.insert(text).second) log::warning("{}", text);
}

/// Throws Error if the system does not let us look at the file.
Json read(const std::string& path) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  require(exists || errno == ENOENT || errno == ENOTDIR, ErrorCode::system_call, "{} cannot be read: {}", path,
          system_text(errno));
  if (!exists) return Json::object();
  const Json found = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (found.is_object()) return found;
  warn_once(
      fmt::format("{} cannot be read, so algorithms are chosen again: it is damaged, or was not written by this "
                  "program",
                  path));
  return Json::object();
}

bool cache_failed = false;  // after a failure, the cache is not tried again

void warn_of_cache(const std::string& reason) {
  cache_failed = true;
  warn_once(
      fmt::format("the cache of algorithms cannot be used, so the chosen ones are not stored for other runs: {}; "
                  "set LOCKSTEP_CACHE to a directory that you can write to, or to none",
                  reason));
}

constexpr const char *kAlgorithm = "algorithm", *kUnderLoad = "timed_under_load", *kTimed = "timed";

Algorithms choices_in(const Json& file, const std::string& machine) {
  Algorithms::Choices choices;
  Algorithms::Keys under_load, untimed;
  if (file.contains(machine) && file[machine].is_object())
    for (const auto& [key, entry] : file[machine].items()) {
      const bool is_marked = entry.is_object() && entry.contains(kAlgorithm) && entry[kAlgorithm].is_string();
      if (!is_marked && !entry.is_string()) continue;
      choices[key] = (is_marked ? entry[kAlgorithm] : entry).get<std::string>();
      if (is_marked) (entry.contains(kTimed) ? untimed : under_load).insert(key);
    }
  Algorithms algorithms;
  algorithms.remember(std::move(choices), std::move(under_load), std::move(untimed));
  return algorithms;
}

/// Saves the choices for this machine. Those for other machines stay.
void save(const std::string& path, const std::string& machine, const Algorithms& algorithms) {
  Json file = read(path);
  Json entries = Json::object();
  for (const auto& [key, algorithm] : algorithms.choices())
    if (algorithms.under_load().contains(key))
      entries[key] = {{kAlgorithm, algorithm}, {kUnderLoad, true}};
    else if (algorithms.untimed().contains(key))
      entries[key] = {{kAlgorithm, algorithm}, {kTimed, false}};
    else
      entries[key] = algorithm;
  if (file.contains(machine) && file[machine] == entries) return;
  file[machine] = entries;
  replace_file(path, file.dump(1) + "\n");
}

}  // namespace

AlgorithmStore::AlgorithmStore(const run::RunDirectory& run, const DeviceInfo& device, std::int64_t batch)
    : run_(run),
      machine_(fmt::format("{}; {}; lockstep {}; batch {}", device.name, fmt::join(device.libraries, ", "), version(),
                           batch)) {
  if (const std::string folder = cache_folder(); !folder.empty()) cache_ = folder + "/" + kName;
}

bool AlgorithmStore::is_on() { return !cache_folder().empty(); }

Algorithms AlgorithmStore::load(Sources sources) const {
  Algorithms of_run;
  if (sources == Sources::run_and_cache) {
    try {
      of_run = choices_in(read(run_.file(kName)), machine_);
    } catch (const Error& error) {
      warn_once(fmt::format("{}; algorithms are chosen again", error.what()));
    }
  }
  if (cache_.empty()) return of_run;
  Algorithms::Choices choices = of_run.choices();
  try {
    const Algorithms cached = choices_in(read(cache_), machine_);
    for (const auto& [key, algorithm] : cached.choices())
      if (!cached.under_load().contains(key) && !cached.untimed().contains(key)) choices.try_emplace(key, algorithm);
  } catch (const Error& error) {
    warn_of_cache(error.what());
  }
  Algorithms::Keys under_load = of_run.under_load(), untimed = of_run.untimed();
  of_run.remember(std::move(choices), std::move(under_load), std::move(untimed));
  return of_run;
}

void AlgorithmStore::save_in_run(const Algorithms& algorithms) const {
  if (!algorithms.choices().empty()) save(run_.file(kName), machine_, algorithms);
}

void AlgorithmStore::save_in_cache(const Algorithms& algorithms) const {
  if (cache_failed) return;
  try {
    std::filesystem::create_directories(std::filesystem::path(cache_).parent_path());
    save(cache_, machine_, algorithms);
  } catch (const std::filesystem::filesystem_error& error) {
    warn_of_cache(fmt::format("{} cannot be created: {}", error.path1().string(), error.code().message()));
  } catch (const Error& error) {
    warn_of_cache(error.what());
  }
}

namespace {

constexpr double kSecondsBetweenReports = 0.25;
constexpr double kSecondsBetweenSaves = 10;

/// What the ranks report to each other. Rank 0 decides when the timing is over.
enum class Report : char { timing = 't', over = 'o', stop = 's' };

/// Collective. Returns rank 0's report, or stop if any rank reports it.
Report exchange(World& world, Report mine) {
  const char letter = stop_requested() ? static_cast<char>(Report::stop) : static_cast<char>(mine);
  const std::vector<std::string> all = world.all_gather(std::string(1, letter));
  const std::string stop(1, static_cast<char>(Report::stop));
  return std::ranges::find(all, stop) != all.end() ? Report::stop : static_cast<Report>(all[0].at(0));
}

}  // namespace

void autotune(World& world, Algorithms& algorithms, const std::function<void()>& plan,
              const std::function<void()>& save) {
  if (world.rank() != 0) {
    Report report = Report::timing;
    while (report == Report::timing) report = exchange(world, Report::timing);
    if (report == Report::stop) throw StoppedBySignal{};
    return;
  }
  const Clock::time_point begin = Clock::now();
  Clock::time_point last_report = begin, last_save = begin;
  int n_timed = 0;
  const auto stop_if = [&](Report report) {
    if (report != Report::stop) return;
    save();
    throw StoppedBySignal{};
  };
  algorithms.enable_timing([&] {
    ++n_timed;
    if (seconds_since(last_report) > kSecondsBetweenReports || stop_requested()) {
      last_report = Clock::now();
      stop_if(exchange(world, Report::timing));
    }
    if (seconds_since(last_save) > kSecondsBetweenSaves) {
      last_save = Clock::now();
      log::info("{} algorithms timed in {:.0f} s", n_timed, seconds_since(begin));
      save();
    }
  });
  plan();
  algorithms.disable_timing();
  if (const std::size_t n = algorithms.untimed().size(); n > 0)
    log::info(
        "{} of {} algorithms were not timed within cuda.tuning_seconds, and are the first of the ranking; the next run "
        "times these",
        n, algorithms.choices().size());
  save();
  stop_if(exchange(world, Report::over));
}

}  // namespace lockstep::train
