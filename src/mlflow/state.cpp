#include "mlflow/state.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace lockstep::mlflow {
namespace {

using Json = nlohmann::ordered_json;

Json content_of(const std::string& path) {
  if (!std::filesystem::exists(path)) return Json::object();
  const Json object = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? object : Json::object();
}

}  // namespace

StateFile::StateFile(const std::string& run_directory, const std::string& address, const std::string& experiment)
    : path_(run_directory + "/mlflow.json"), key_(fmt::format("{} {}", address, experiment)) {}

State StateFile::read() const {
  const Json all = content_of(path_);
  State state;
  if (!all.contains(key_)) return state;
  try {
    const Json& entry = all[key_];
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

void StateFile::write(const State& state) const {
  Json all = content_of(path_);
  all[key_] = {{"experiment_id", state.experiment_id},
               {"creation_id", state.creation_id},
               {"run_id", state.run.id},
               {"artifact_uri", state.run.artifact_uri},
               {"status", state.status},
               {"metrics",
                {{"bytes", state.position.bytes},
                 {"tail_hash", state.position.tail_hash},
                 {"last_time_unix", state.position.last_time_unix}}},
               {"files", state.files},
               {"parameters", state.parameters}};
  replace_file(path_, all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace lockstep::mlflow
