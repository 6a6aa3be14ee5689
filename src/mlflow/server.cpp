#include "mlflow/server.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>

#include "base/file.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "lockstep/error.h"

namespace lockstep::mlflow {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kProxyScheme = "mlflow-artifacts:";
constexpr std::size_t kLongestMessage = 300;

std::string escaped(std::string_view text, std::string_view unescaped) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = byte < 0x80 && (std::isalnum(byte) != 0 || unescaped.find(c) != std::string_view::npos);
    out += is_plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

Json list_of(const Texts& texts) {
  Json list = Json::array();
  for (const auto& [key, value] : texts) list.push_back({{"key", key}, {"value", value}});
  return list;
}

std::string text_in(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

Json object_in(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : Json();
}

RunOnServer run_in(const Json& run) {
  const Json info = object_in(run, "info");
  return {.id = text_in(info, "run_id"), .artifact_uri = text_in(info, "artifact_uri")};
}

/// The folder of an artifact_uri that is a path or a file: URI; empty for any other URI.
std::string folder_of(const std::string& artifact_uri) {
  if (artifact_uri.starts_with("file:///")) return artifact_uri.substr(7);
  return artifact_uri.starts_with("/") ? artifact_uri : "";
}

/// The server chooses the folder. Nothing is written unless it looks like that of this run
/// (ROOT/EXPERIMENT/RUN/artifacts) and the store exists on this machine.
bool is_usable(const fs::path& folder, const std::string& run_id) {
  return !run_id.empty() && folder.filename() == "artifacts" && folder.parent_path().filename() == run_id &&
         is_folder(folder.parent_path().parent_path().parent_path());
}

void copy_into(const fs::path& folder, const std::string& file, const std::string& name) {
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path target = folder / name, partial = folder / (name + ".partial");
  if (!error) fs::copy_file(file, partial, fs::copy_options::overwrite_existing, error);
  if (!error) fs::rename(partial, target, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(partial, ignored);
  throw Problem(fmt::format("{} cannot be written: {}", printable(target.string()), error.message()), false);
}

}  // namespace

Server::Server(std::string address, const Limits& limits) : address_(std::move(address)), http_(limits) {
  while (address_.ends_with('/')) address_.pop_back();
}

std::string Server::page_of(const std::string& experiment_id, const std::string& run_id) const {
  return fmt::format("{}/#/experiments/{}/runs/{}", address_, experiment_id, run_id);
}

/// `what`: "POST runs/create", for messages.
Json Server::answer_to(const Request& request, const std::string& what) {
  const Response response = http_.send(request);
  if (response.status == 0)
    throw Problem(fmt::format("{} cannot be reached ({})", address_, printable(response.problem, kLongestMessage)),
                  response.is_temporary);
  const Json object = Json::parse(response.body.empty() ? "{}" : response.body, nullptr, /*allow_exceptions=*/false);
  if (response.status >= 200 && response.status < 300) {
    if (object.is_object()) return object;
    throw Problem(fmt::format("{} is not an MLflow server: its answer to {} is not a JSON object", address_, what),
                  false);
  }
  const std::string code = text_in(object, "error_code");
  std::string message = text_in(object, "message");
  if (!code.empty()) message = message.empty() ? code : code + " " + message;
  const bool is_temporary = response.status >= 500 || response.status == 429 || response.status == 408;
  throw Problem(fmt::format("{} answers {} to {}{}", address_, response.status, what,
                            message.empty() ? "" : ": " + printable(message, kLongestMessage)),
                is_temporary, code);
}

Json Server::call(const std::string& method, const std::string& path, const Json& body) {
  Request request{.method = method, .url = address_ + "/api/2.0/mlflow/" + path};
  request.new_connection = path == "runs/create";  // a retry on a stale connection must not create the run twice
  if (method != "GET") request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return answer_to(request, method + " " + path.substr(0, path.find('?')));
}

std::string Server::experiment(const std::string& name) {
  const auto get = [&]() -> std::string {
    const Json found =
        object_in(call("GET", "experiments/get-by-name?experiment_name=" + escaped(name, "-_."), {}), "experiment");
    if (text_in(found, "lifecycle_stage") == "deleted")
      throw Problem(fmt::format("the experiment \"{}\" was deleted on {}: restore it there, or choose another one with "
                                "log.mlflow_experiment",
                                printable(name), address_),
                    false);
    return text_in(found, "experiment_id");
  };
  const auto or_empty = [&](auto&& work, const char* code) -> std::string {
    try {
      return work();
    } catch (const Problem& problem) {
      if (problem.code() != code) throw;
      return "";
    }
  };
  std::string id = or_empty(get, "RESOURCE_DOES_NOT_EXIST");
  // Another run may be creating it at the same time.
  if (id.empty())
    id = or_empty(
        [&] {
          return text_in(call("POST", "experiments/create", {{"name", name}}), "experiment_id");
        },
        "RESOURCE_ALREADY_EXISTS");
  if (id.empty()) id = get();
  if (id.empty()) throw Problem(fmt::format("{} is not an MLflow server: it names no experiment_id", address_), false);
  return id;
}

RunOnServer Server::create_run(const std::string& experiment_id, const std::string& name, std::int64_t start_ms,
                               const Texts& tags) {
  const RunOnServer run = run_in(object_in(
      call("POST", "runs/create",
           {{"experiment_id", experiment_id}, {"run_name", name}, {"start_time", start_ms}, {"tags", list_of(tags)}}),
      "run"));
  if (run.id.empty()) throw Problem(fmt::format("{} is not an MLflow server: it names no run_id", address_), false);
  return run;
}

RunOnServer Server::find_run(const std::string& experiment_id, const std::string& tag, const std::string& value) {
  const Json runs = object_in(call("POST", "runs/search",
                                   {{"experiment_ids", {experiment_id}},
                                    {"filter", fmt::format("tags.`{}` = '{}'", tag, value)},
                                    {"max_results", 1}}),
                              "runs");
  return runs.is_array() && !runs.empty() ? run_in(runs[0]) : RunOnServer{};
}

void Server::log_metrics(const std::string& run_id, std::span<const Metric> metrics) {
  Json list = Json::array();
  for (const Metric& metric : metrics)
    list.push_back(
        {{"key", metric.key}, {"value", metric.value}, {"timestamp", metric.time_ms}, {"step", metric.step}});
  call("POST", "runs/log-batch", {{"run_id", run_id}, {"metrics", std::move(list)}});
}

void Server::log_parameters(const std::string& run_id, const Texts& parameters) {
  const auto send = [&](std::size_t longest) {
    Texts cut = parameters;
    for (auto& [key, value] : cut) {
      value = valid_utf8(value);
      if (value.size() > longest) value.resize(valid_length(value.substr(0, longest)));
    }
    call("POST", "runs/log-batch", {{"run_id", run_id}, {"params", list_of(cut)}});
  };
  try {
    send(kMaxParameterValue);
  } catch (const Problem& problem) {
    if (problem.code() != "INVALID_PARAMETER_VALUE") throw;
    send(kMaxOldParameterValue);
  }
}

void Server::log_tags(const std::string& run_id, const Texts& tags) {
  call("POST", "runs/log-batch", {{"run_id", run_id}, {"tags", list_of(tags)}});
}

void Server::set_status(const std::string& run_id, const std::string& status, std::int64_t end_ms) {
  Json body{{"run_id", run_id}, {"status", status}};
  if (end_ms > 0) body["end_time"] = end_ms;
  call("POST", "runs/update", body);
}

bool Server::supports(const std::string& artifact_uri, const std::string& run_id) {
  return artifact_uri.starts_with(kProxyScheme) || is_usable(folder_of(artifact_uri), run_id);
}

void Server::upload(const RunOnServer& run, const std::string& file, std::size_t n_bytes, const std::string& name) {
  if (!run.artifact_uri.starts_with(kProxyScheme)) {
    copy_into(folder_of(run.artifact_uri), file, name);
    return;
  }
  // "mlflow-artifacts:/1/RUN/artifacts" on this server, or "mlflow-artifacts://host:port/1/RUN/artifacts".
  std::string path = run.artifact_uri.substr(std::string_view(kProxyScheme).size()), server = address_;
  if (path.starts_with("//")) {
    const std::size_t end = std::min(path.find('/', 2), path.size());
    if (end > 2) server = address_.substr(0, address_.find("//")) + path.substr(0, end);
    path = path.substr(end);
  }
  while (path.starts_with('/')) path.erase(0, 1);
  answer_to({.method = "PUT",
             .url = fmt::format("{}/api/2.0/mlflow-artifacts/artifacts/{}/{}", server, escaped(path, "-_./"),
                                escaped(name, "-_.")),
             .file = file,
             .file_bytes = n_bytes,
             .timeout_seconds = 60},
            "PUT " + name);
}

}  // namespace lockstep::mlflow
