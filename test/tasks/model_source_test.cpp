// Where the architecture of a language model comes from.
#include "tasks/language_modelling/model_source.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::tasks {
namespace {

TEST(ModelSource, IsADirectoryAFileAPresetOrAnObject) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "model_source_test";
  std::filesystem::create_directories(folder);
  const models::LlamaConfig preset = *models::llama_preset("smollm-135m");
  const std::string text = models::to_json(preset).dump();
  std::ofstream(folder / "config.json") << text;
  for (const std::string& config :
       {folder.string(), (folder / "config.json").string(), std::string("smollm-135m"), text}) {
    Config::Model model;
    model.config = config;
    EXPECT_EQ(model_source(model), preset) << config;
  }
  Config::Model model;
  model.from = folder.string();
  EXPECT_EQ(model_source(model), preset);
  model.config = "qwen2-0.5b";  // takes precedence over the directory
  EXPECT_EQ(model_source(model).layers, 24);
  std::filesystem::remove_all(folder);
}

TEST(ModelSource, IsWhatTheRunRecordedIfTheFileIsGone) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "model_source_gone_test";
  std::filesystem::create_directories(folder);
  const std::string recorded = models::to_json(*models::llama_preset("smollm-135m")).dump();
  const nlohmann::json stamp{{"family", "llama"}, {"config", recorded}};
  const auto restored = [&](const std::string& from, const std::string& config, const nlohmann::json& of_run) {
    Config::Model model;
    model.from = from;
    model.config = config;
    return std::pair(restore_model_source(model, of_run), model.config);
  };
  const std::string gone =
      (folder / "config.json").string() + " does not exist any more; the model is as the run recorded it";
  EXPECT_EQ(restored(folder.string(), "", stamp), std::pair(gone, recorded));
  EXPECT_EQ(restored("none", (folder / "config.json").string(), stamp), std::pair(gone, recorded));
  EXPECT_EQ(restored("none", "qwen2-0.5b", stamp), std::pair(std::string(), std::string("qwen2-0.5b")));
  EXPECT_EQ(restored(folder.string(), "", {}), std::pair(std::string(), std::string()));
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_EQ(restored(folder.string(), "", stamp), std::pair(std::string(), std::string()));
  std::filesystem::remove_all(folder);
}

TEST(ModelSource, NamesTheKeyThatIsMissingOrWrong) {
  const auto message = [](const std::string& from, const std::string& config) -> std::string {
    Config::Model model;
    model.from = from;
    model.config = config;
    try {
      model_source(model);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("none", "").find("smollm-135m"), std::string::npos);
  EXPECT_NE(message("none", "smollm").find("model.config"), std::string::npos);
  EXPECT_NE(message("/nowhere", "").find("model.from"), std::string::npos);
  EXPECT_NE(message("none", "{}").find("architectures"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::tasks
