#include "mlflow/upload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/utf8.h"
#include "base/version.h"
#include "config/parser.h"
#include "lockstep/error.h"
#include "run/metrics_file.h"

namespace lockstep::mlflow {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kCreationTag = "lockstep.creation";

std::int64_t milliseconds(double unix_seconds) { return std::llround(1e3 * unix_seconds); }

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::string user_name() {
  const std::string name = environment("USER");
  return name.empty() ? fmt::format("uid {}", ::getuid()) : name;
}

/// The hash and the length of a file as it is now; it may grow.
std::pair<std::string, std::size_t> hash_of(const std::string& path) {
  const Descriptor file = open_regular_file(path);
  StreamingHash hash;
  std::string buffer(std::size_t{1} << 20, '\0');
  std::size_t total = 0;
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    require(n >= 0, ErrorCode::system_call, "cannot read {}: {}", path, system_text(errno));
    if (n == 0) break;
    hash.update(std::as_bytes(std::span(buffer.data(), static_cast<std::size_t>(n))));
    total += static_cast<std::size_t>(n);
  }
  return {hash_text(hash.digest()), total};
}

/// The object in RUN/mlflow.json, with an entry per server and experiment.
Json content_of(const std::string& path) {
  if (!std::filesystem::exists(path)) return Json::object();
  const Json object = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? object : Json::object();
}

/// Calls `send` with at most `most` texts at a time.
template <typename Send>
void in_groups(const Texts& texts, std::size_t most, Send send) {
  for (std::size_t begin = 0; begin < texts.size(); begin += most)
    send(Texts(texts.begin() + static_cast<std::ptrdiff_t>(begin),
               texts.begin() + static_cast<std::ptrdiff_t>(std::min(begin + most, texts.size()))));
}

}  // namespace

std::string status_for(const std::string& status) {
  if (status == "running") return "RUNNING";
  if (status == "done") return "FINISHED";
  if (status == "stopped") return "KILLED";
  return status == "failed" ? "FAILED" : "";
}

Upload::Upload(UploadOptions options, const Limits& limits)
    : options_(std::move(options)), server_(options_.address, limits), state_(read_state()) {}

Upload::State Upload::read_state() const {
  const Json all = content_of(state_path());
  State state;
  if (!all.contains(state_key())) return state;
  try {
    const Json& entry = all[state_key()];
    state.experiment_id = entry.at("experiment_id");
    state.creation_id = entry.at("creation_id");
    state.run = {.id = entry.at("run_id"), .artifact_uri = entry.at("artifact_uri")};
    state.status = entry.at("status");
    state.parameters = entry.at("parameters").get<std::map<std::string, std::string>>();
    state.files = entry.at("files").get<std::map<std::string, std::string>>();
    const Json& position = entry.at("metrics");
    state.position = {.bytes = position.at("bytes"),
                      .tail_hash = position.at("tail_hash"),
                      .last_time_unix = position.at("last_time_unix")};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return state;
}

void Upload::save() const {
  Json all = content_of(state_path());
  all[state_key()] = {{"experiment_id", state_.experiment_id},
                      {"creation_id", state_.creation_id},
                      {"run_id", state_.run.id},
                      {"artifact_uri", state_.run.artifact_uri},
                      {"status", state_.status},
                      {"metrics",
                       {{"bytes", state_.position.bytes},
                        {"tail_hash", state_.position.tail_hash},
                        {"last_time_unix", state_.position.last_time_unix}}},
                      {"files", state_.files},
                      {"parameters", state_.parameters}};
  replace_file(state_path(), all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Texts Upload::tags() const {
  std::error_code error;
  Texts tags{{"mlflow.source.type", std::getenv("SLURM_JOB_ID") != nullptr ? "JOB" : "LOCAL"},
             {"mlflow.source.name", "lockstep"},
             {"mlflow.user", user_name()},
             {"mlflow.runName", options_.config.run.name},
             {"lockstep.version", version()},
             {"lockstep.run_directory", fs::absolute(options_.run, error).lexically_normal().string()},
             {kCreationTag, state_.creation_id}};
  if (const char* job = std::getenv("SLURM_JOB_ID")) tags.emplace_back("slurm.job_id", job);
  for (auto& [key, value] : tags) value = valid_utf8(value);
  return tags;
}

/// If the creation of a run was not confirmed, the run may still exist: it is found by its tag.
void Upload::open() {
  if (is_open()) return;
  if (state_.experiment_id.empty()) state_.experiment_id = server_.experiment(options_.experiment);
  if (!state_.creation_id.empty())
    state_.run = server_.find_run(state_.experiment_id, kCreationTag, state_.creation_id);
  if (!is_open()) {
    if (state_.creation_id.empty()) state_.creation_id = random_id();
    save();
    std::vector<Metric> first;
    EventReader(run::metrics_path(options_.run), {}).read(1, first);
    const std::int64_t start_ms = first.empty() ? milliseconds(unix_seconds()) : first.front().time_ms;
    state_.run = server_.create_run(state_.experiment_id, valid_utf8(options_.config.run.name), start_ms, tags());
    state_.status = "RUNNING";
  }
  save();
}

Upload::Parameters Upload::unsent_parameters() const {
  Parameters out;
  for (auto& [key, value] : config::values_in(config::to_yaml(options_.config))) {
    const auto sent = state_.parameters.find(key);
    if (sent == state_.parameters.end())
      out.fresh.emplace_back(key, value);
    else if (sent->second != value)
      out.changed.emplace_back(key, value);
  }
  return out;
}

/// MLflow does not allow changes of parameters, so the changes of a resumed run become tags.
void Upload::send_parameters() {
  const auto note = [&](const Texts& group) {
    for (const auto& [key, value] : group) state_.parameters[key] = value;
    sent_.parameters += static_cast<std::int64_t>(group.size());
    save();
  };
  const Parameters unsent = unsent_parameters();
  in_groups(unsent.fresh, kMaxParameters, [&](const Texts& group) {
    server_.log_parameters(state_.run.id, group);
    note(group);
  });
  in_groups(unsent.changed, kMaxTags, [&](const Texts& group) {
    Texts tags;
    for (const auto& [key, value] : group) tags.emplace_back("resumed." + key, valid_utf8(value));
    server_.log_tags(state_.run.id, tags);
    note(group);
  });
}

void Upload::send_metrics(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  EventReader reader(run::metrics_path(options_.run), state_.position);
  for (;;) {
    std::vector<Metric> metrics;
    const std::uint64_t before = state_.position.bytes;
    reader.read(kMaxMetrics, metrics);
    for (std::size_t begin = 0; begin < metrics.size(); begin += kMaxMetrics)
      server_.log_metrics(state_.run.id,
                          std::span(metrics).subspan(begin, std::min(kMaxMetrics, metrics.size() - begin)));
    if (reader.position().bytes == before) return;
    state_.position = reader.position();
    sent_.metrics += static_cast<std::int64_t>(metrics.size());
    save();
    if (progress) progress(state_.position.bytes, reader.size_bytes());
  }
}

void Upload::send_status(const std::string& status) {
  if (status.empty() || state_.status == status) return;
  // The time of the last event: the run may have ended long ago.
  const double end = state_.position.last_time_unix > 0 ? state_.position.last_time_unix : unix_seconds();
  server_.set_status(state_.run.id, status, status == "RUNNING" ? 0 : milliseconds(end));
  state_.status = status;
  sent_.status = true;
  save();
}

std::string Upload::files_note() const {
  if (!is_open() || Server::supports(state_.run.artifact_uri, state_.run.id)) return "";
  return fmt::format(
      "files are not sent, since the server keeps them in {}, to which Lockstep cannot write: start the server "
      "with --serve-artifacts, or with an artifact root on a file system that this machine shares",
      printable(state_.run.artifact_uri));
}

std::vector<Upload::File> Upload::changed_files(const std::vector<std::string>& names) const {
  std::vector<File> files;
  for (const std::string& name : names) {
    File file{.path = options_.run + "/" + name, .name = name, .hash = {}};
    std::error_code error;
    if (!fs::is_regular_file(file.path, error)) continue;
    std::tie(file.hash, file.n_bytes) = hash_of(file.path);
    const auto sent = state_.files.find(name);
    if (sent == state_.files.end() || sent->second != file.hash) files.push_back(file);
  }
  return files;
}

void Upload::send_files(const std::vector<std::string>& names) {
  if (!files_note().empty()) return;
  for (const File& file : changed_files(names)) {
    server_.upload(state_.run, file.path, file.n_bytes, file.name);
    state_.files[file.name] = file.hash;
    ++sent_.files;
    save();
  }
}

Amount Upload::missing(const std::string& status, const std::vector<std::string>& names) const {
  const Parameters unsent = unsent_parameters();
  Amount out{.parameters = static_cast<std::int64_t>(unsent.fresh.size() + unsent.changed.size()),
             .status = !status.empty() && state_.status != status};
  if (files_note().empty()) out.files = static_cast<std::int64_t>(changed_files(names).size());
  EventReader reader(run::metrics_path(options_.run), state_.position);
  for (std::uint64_t before = UINT64_MAX; reader.position().bytes != before;) {
    std::vector<Metric> metrics;
    before = reader.position().bytes;
    reader.read(kMaxMetrics, metrics);
    out.metrics += static_cast<std::int64_t>(metrics.size());
  }
  return out;
}

}  // namespace lockstep::mlflow
