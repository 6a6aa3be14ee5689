#include "commands/model_argument.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "inference/inference.h"
#include "lockstep/error.h"
#include "tasks/image_classification/description.h"

namespace lockstep::commands {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_override(const std::string& operand) {
  std::error_code error;  // a list of values can be too long for a file name
  return operand.find('=') != std::string::npos && !fs::exists(operand, error);
}

bool sets_precision(const std::vector<std::string>& overrides) {
  return std::ranges::any_of(overrides, [](const std::string& o) { return o.starts_with("precision="); });
}

std::string checkpoint_of_run(const std::string& folder) {
  for (const char* link : {"best", "latest"}) {
    const std::string path = (fs::path(folder) / "checkpoints" / link).string();
    std::error_code error;
    if (fs::exists(path, error)) return path;
    require(!error, ErrorCode::cannot_open, "cannot open {}: {}", path, error.message());
    const std::string broken = broken_link_text(path);
    require(broken.empty(), ErrorCode::cannot_open, "{}: name another checkpoint of the run", broken);
  }
  fail(ErrorCode::cannot_open,
       "{} is a folder without checkpoints/best and checkpoints/latest: expected the directory of a run", folder);
}

ConfiguredImages configured_images(const Config& config) {
  const Config::Data& d = config.data;
  std::vector<std::string> missing;
  if (d.image_size == 0) missing.emplace_back("data.image_size=224");
  if (d.mean.empty()) missing.emplace_back("'data.mean=[0.485, 0.456, 0.406]'");
  if (d.std.empty()) missing.emplace_back("'data.std=[0.229, 0.224, 0.225]'");
  if (!missing.empty()) return {.inference = {}, .missing = fmt::format("{}", fmt::join(missing, " "))};
  const int size = tasks::evaluation_size(d);
  const tasks::ImageDescription description{.height = size,
                                            .width = size,
                                            .channels = static_cast<int>(d.mean.size()),
                                            .resize = data::resized_side(size, d.validation_resize),
                                            .mean = {d.mean.begin(), d.mean.end()},
                                            .stddev = {d.std.begin(), d.std.end()},
                                            .class_names = {},
                                            .batch_norm_epsilon = config.batch_norm.epsilon};
  return {.inference = tasks::to_json(description), .missing = ""};
}

ModelBackend open_model_backend(Config& config, const checkpoint::ModelFile& file, PrecisionOf precision,
                                const BackendOptions& options) {
  if (precision == PrecisionOf::model && file.state.contains("precision"))
    config.precision =
        inference::parse_recorded({"precision=" + file.state["precision"].get<std::string>()}, file.path).precision;
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
