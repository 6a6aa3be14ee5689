#include "commands/model_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/parser.h"
#include "lockstep/error.h"

namespace lockstep::commands {

namespace fs = std::filesystem;

bool is_override(const std::string& operand) { return operand.find('=') != std::string::npos && !fs::exists(operand); }

bool sets_precision(const std::vector<std::string>& overrides) {
  return std::ranges::any_of(overrides, [](const std::string& o) { return o.starts_with("precision="); });
}

std::string checkpoint_of_run(const std::string& folder) {
  for (const char* link : {"best", "latest"}) {
    const std::string path = (fs::path(folder) / "checkpoints" / link).string();
    if (fs::exists(path)) return path;
  }
  fail(ErrorCode::checkpoint_not_found,
       "{} is a folder without checkpoints/best and checkpoints/latest: expected the directory of a run", folder);
}

ModelBackend open_model_backend(Config& config, const checkpoint::ModelFile& file, PrecisionOf precision,
                                const BackendOptions& options) {
  if (precision == PrecisionOf::model && file.state.contains("precision"))
    config.precision = config::parse({"precision=" + file.state["precision"].get<std::string>()}).precision;
  ModelBackend out{.backend = make_backend(options), .warning = {}};
  try {
    const std::string warning = out.backend->check_precision(config.precision);
    if (!warning.empty()) out.warning = "precision: " + warning;
  } catch (const Error& error) {
    if (precision == PrecisionOf::user) throw;
    out.warning = fmt::format("the model is used in fp32: {}", error.what());
    config.precision = Precision::fp32;
  }
  return out;
}

}  // namespace lockstep::commands
