#include "scaling/case_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

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
  Measurement measurement = measure(run(), study.steps, study.warmup_steps);
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

}  // namespace lockstep::scaling
