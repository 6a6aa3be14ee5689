#include "scaling/case_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "base/file.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "run/run_lock.h"

namespace lockstep::scaling {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 26;
constexpr const char* kOfAttempt[] = {"run", "output.txt", "job.txt", "hosts.txt"};

/// Waits for ranks of an interrupted study, which may still be ending.
void wait_until_free(const std::string& run) {
  using namespace std::chrono_literals;
  for (int attempts = 0;; ++attempts) {
    try {
      run::RunLock::require_free(run);
      return;
    } catch (const Error&) {
      constexpr int kAttempts = 40;
      if (attempts == kAttempts) throw;
      std::this_thread::sleep_for(250ms);
    }
  }
}

std::string first_line(const std::string& path) {
  if (!fs::exists(path)) return "";
  const std::string text = read_file(path, kMaxBytes);
  return text.substr(0, text.find('\n'));
}

}  // namespace

bool CaseFiles::is_finished() const { return fs::exists(finished()); }
bool CaseFiles::has_begun() const {
  return !is_finished() && std::ranges::any_of(kOfAttempt, [&](const char* name) { return fs::exists(file(name)); });
}
std::string CaseFiles::status() const { return first_line(run() + "/status"); }
std::string CaseFiles::job() const { return first_line(file("job.txt")); }

std::string CaseFiles::reason_in_output() const {
  constexpr int kLines = 6;
  if (!fs::exists(output())) return "";
  const std::string text = read_file(output(), kMaxBytes);
  const std::string_view error = "\nlockstep: ", code = "\n  [";
  const std::size_t first = ("\n" + text).find(error);
  if (const std::size_t last = text.find(code, first); first != std::string::npos && last != std::string::npos)
    return text.substr(first, text.find('\n', last + 1) - first);
  std::size_t begin = text.size();
  for (int i = 0; i <= kLines && begin > 0 && begin != std::string::npos; ++i) begin = text.rfind('\n', begin - 1);
  return text.substr(begin == std::string::npos ? 0 : std::min(begin + 1, text.size()));
}

std::optional<Measurement> CaseFiles::measurement() const {
  if (!is_finished()) return std::nullopt;
  return measurement_in(read_file(finished(), kMaxBytes), finished());
}

std::optional<Measurement> CaseFiles::measurement_of_run(const Study& study) const {
  if (status() != "done") return std::nullopt;
  Measurement measurement = measure(run(), study);
  add_hosts(measurement);
  std::error_code error;
  const auto end = fs::last_write_time(run() + "/status", error);
  const auto begin = error ? end : fs::last_write_time(file("hosts.txt"), error);
  if (!error) measurement.seconds = std::chrono::duration<double>(end - begin).count();
  return measurement;
}

void CaseFiles::prepare(const Config& config) const {
  require(!is_finished(), ErrorCode::internal, "the case {} is finished", directory_);
  std::error_code error;
  fs::create_directories(directory_, error);
  require(!error, ErrorCode::system_call, "cannot create the directory of a case: {}",
          folder_problem(directory_, error));
  if (has_begun()) {
    wait_until_free(run());
    remove_weights();
    int attempt = 1;
    while (fs::exists(file(fmt::format("attempt-{}", attempt)))) ++attempt;
    const std::string aside = file(fmt::format("attempt-{}", attempt));
    fs::create_directory(aside);
    for (const char* name : kOfAttempt)
      if (fs::exists(file(name))) fs::rename(file(name), aside + "/" + name);
  }
  replace_file(file("config.yaml"), config::to_yaml(config));
}

void CaseFiles::write_job(const std::string& id) const { replace_file(file("job.txt"), id + "\n"); }

void CaseFiles::finish(const Measurement& measurement) const {
  remove_weights();  // first, since nothing returns to a finished case
  replace_file(finished(),
               json_of(measurement).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void CaseFiles::remove_weights() const {
  std::error_code ignored;  // files that cannot be removed only take up space
  for (const char* name : {"checkpoints", "model.safetensors", "model", "model_ema.safetensors", "model_ema"})
    fs::remove_all(run() + "/" + name, ignored);
}

/// Reads the lines of jobs/lib/job.sh: "host NAME MACHINE CORES BUSY" for each node, and "job ID" for each other job on
/// these nodes.
void CaseFiles::add_hosts(Measurement& measurement) const {
  if (!fs::exists(file("hosts.txt"))) return;
  std::istringstream lines(read_file(file("hosts.txt"), kMaxBytes));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind, name, machine, cores, busy;
    words >> kind >> name;
    if (kind == "job" && !name.empty()) measurement.other_jobs.push_back(name);
    if (kind != "host" || !(words >> machine >> cores >> busy)) continue;
    const auto host = std::ranges::find(measurement.hosts, name, &Host::name);
    if (host == measurement.hosts.end()) continue;
    host->machine = machine;
    host->cores = std::max(0.0, std::strtod(cores.c_str(), nullptr));
    host->busy = std::strtod(busy.c_str(), nullptr);
  }
}

namespace {

constexpr int kMostRanks = 1'000'000;

/// Not std::shuffle, whose result depends on the standard library.
void shuffle(std::vector<Case>& cases, std::size_t begin, std::mt19937_64& random) {
  for (std::size_t i = cases.size() - 1; i > begin; --i) std::swap(cases[i], cases[begin + random() % (i - begin + 1)]);
}

}  // namespace

std::vector<int> sizes_in(const std::string& text, const std::string& option, const std::string& if_twice) {
  std::vector<int> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    int number = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, number);
    require(error == std::errc{} && stop == text.data() + end && number >= 1 && number <= kMostRanks, ErrorCode::usage,
            "{}: expected numbers from 1 to {} with commas between them, such as 1,2,4, found \"{}\"", option,
            kMostRanks, text);
    numbers.push_back(number);
    begin = end + 1;
  }
  std::ranges::sort(numbers);
  const auto twice = std::ranges::adjacent_find(numbers);
  require(twice == numbers.end(), ErrorCode::usage, "{}: {} is given twice; {}", option,
          twice == numbers.end() ? 0 : *twice, if_twice);
  return numbers;
}

std::vector<Size> sizes_of(const std::vector<int>& numbers, bool are_nodes, int ranks_per_node) {
  std::vector<Size> sizes;
  for (const int number : numbers) {
    if (are_nodes) {
      require(number <= kMostRanks / std::max(1, ranks_per_node), ErrorCode::usage, "{} nodes have too many ranks",
              number);
      sizes.push_back({.ranks = number * std::max(1, ranks_per_node), .nodes = number});
      continue;
    }
    const bool fits = ranks_per_node == 0 || number <= ranks_per_node;
    require(fits || number % ranks_per_node == 0, ErrorCode::usage,
            "{} ranks do not fill nodes of {}: use multiples of --ranks-per-node", number, ranks_per_node);
    sizes.push_back({.ranks = number, .nodes = fits ? 1 : number / ranks_per_node});
  }
  return sizes;
}

std::vector<Case> make_cases(const std::vector<Size>& sizes, int repeats, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Case> cases;
  for (int repeat = 1; repeat <= repeats; ++repeat) {
    const std::size_t begin = cases.size();
    for (const Size& size : sizes)
      cases.push_back({.name = fmt::format("ranks-{:04}-repeat-{}", size.ranks, repeat),
                       .ranks = size.ranks,
                       .nodes = size.nodes,
                       .repeat = repeat});
    shuffle(cases, begin, random);
  }
  return cases;
}

Scaling scaling_of(const Config& config) { return config.train.global_batch > 0 ? Scaling::strong : Scaling::weak; }

std::int64_t batch_of(const Config& config, Scaling scaling, int fewest_ranks) {
  const auto& train = config.train;
  require(train.batch_per_rank != Config::kAuto && train.accumulate != Config::kAuto, ErrorCode::usage,
          "the batch must be the same in all cases of a study, but {}train.batch_per_rank or train.accumulate is auto: "
          "give numbers, which `lockstep plan` suggests",
          config.places({"train.batch_per_rank", "train.accumulate"}));
  const std::int64_t micro_batches = std::int64_t{fewest_ranks} * train.accumulate;
  if (train.global_batch == 0)
    return scaling == Scaling::weak ? train.batch_per_rank : train.batch_per_rank * micro_batches;
  if (scaling == Scaling::strong) return train.global_batch;
  require(train.micro_batches == 0, ErrorCode::usage,
          "train.micro_batches fixes the global batch, so it cannot be combined with --weak");
  require(train.global_batch % micro_batches == 0, ErrorCode::usage,
          "--weak: the global batch {} cannot be divided among {} ranks with train.accumulate={}: set "
          "train.batch_per_rank instead",
          train.global_batch, fewest_ranks, train.accumulate);
  return train.global_batch / micro_batches;
}

Config configuration_of(const Study& study, const Case& a_case, Config config) {
  require(study.scaling == Scaling::weak || study.batch >= std::int64_t{a_case.ranks} * config.train.accumulate,
          ErrorCode::usage,
          "--strong: a global batch of {} has too few samples for {} ranks with train.accumulate={}: use a greater "
          "train.global_batch, fewer ranks, or --weak",
          study.batch, a_case.ranks, config.train.accumulate);
  config.run.directory = study.directory_of(a_case);
  config.run.name = "run";
  config.train.global_batch = study.scaling == Scaling::strong ? study.batch : 0;
  config.train.batch_per_rank = study.scaling == Scaling::strong ? 0 : study.batch;
  config.train.max_steps = study.steps;
  // The run must not end before max_steps, even if an epoch has only a few steps.
  config.train.epochs =
      study.epochs > 0 ? study.epochs : static_cast<int>(std::max<std::int64_t>(config.train.epochs, study.steps));
  if (study.epochs == 0) config.data.validation = "";
  config.evaluation.patience = 0;
  config.checkpoint = Config::Checkpoint();
  config.checkpoint.every_epochs = 0;
  config.log.every_steps = 1;
  config.log.tensorboard = config.log.progress = false;
  config.log.usage_seconds = 0.5;
  return config;
}

}  // namespace lockstep::scaling
