// Configurations for users of other programs: DeepSpeed's files, variables of make, and the keys that messages name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "config/parser.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

using Values = std::map<std::string, std::string>;

class OtherPrograms : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_config_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file(const std::string& text, const std::string& name) {
    const std::string path = directory_ / name;
    std::ofstream(path) << text;
    return path;
  }

  /// The keys that differ from their defaults, with their values.
  static Values changed(const Config& config) {
    Values values;
    for (const Key& key : table())
      if (key.get(config) != key.get(Config{})) values[key.name] = key.get(config);
    return values;
  }
  Values deepspeed(const std::string& json) { return changed(parse({}, file(json, "ds.json"))); }

  /// The lines of the error, without the directory of the test.
  std::vector<std::string> refused(const std::vector<std::string>& arguments, const std::string& json = "") {
    std::vector<std::string> lines(1);
    try {
      parse(arguments, json.empty() ? "" : file(json, "ds.json"));
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(entry(e.code()).exit_status, kExitUsage) << e.what();
      for (const char c : std::string(e.what()))
        if (c == '\n')
          lines.emplace_back();
        else
          lines.back() += c;
    }
    for (std::string& line : lines)
      if (line.starts_with(directory_.string())) line.erase(0, directory_.string().size() + 1);
    return lines;
  }

  std::filesystem::path directory_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(OtherPrograms, DeepSpeedsKeysAreTranslated) {
  const std::vector<std::pair<std::string, Values>> cases{
      {R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8})",
       {{"train.global_batch", "0"}, {"train.batch_per_rank", "4"}, {"train.accumulate", "8"}}},
      {R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8})",
       {{"train.global_batch", "64"}, {"train.accumulate", "8"}}},
      {R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4})",
       {{"train.global_batch", "64"}, {"train.accumulate", "auto"}}},
      {R"({"train_batch_size": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"})", {}},
      {R"({"gradient_clipping": 0.5, "steps_per_print": 2000, "communication_data_type": "bfp16"})",
       {{"train.clip_norm", "0.5"}, {"log.every_steps", "2000"}, {"comm.gradients", "bf16"}}},
      {R"({"zero_optimization": {"stage": 0, "cpu_offload": false, "offload_optimizer": {"device": "none"}}})", {}},
      {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}}})",
       {{"train.shard", "parameters"}, {"train.offload", "optimizer"}}},
      {R"({"zero_optimization": {"stage": 2, "cpu_offload": true}})",
       {{"train.shard", "gradients"}, {"train.offload", "optimizer"}}},
      {R"({"zero_optimization": {"stage": 1, "reduce_bucket_size": 26214400, "overlap_comm": true}})",
       {{"train.shard", "optimizer"}, {"comm.bucket_mb", "100"}}},
      {R"({"zero_optimization": {"stage": 2}})", {{"train.shard", "gradients"}}},
      {R"({"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"}})",
       {{"train.shard", "parameters"}}},
      {R"({"bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 128}})", {{"precision", "bf16"}}},
      {R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0}, "wandb": {"enabled": false}})",
       {}},
      {R"({"fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale_window": 500, "loss_scale": 0}})",
       {{"precision", "fp16"}, {"loss_scale.initial", "4096"}, {"loss_scale.growth_steps", "500"}}},
      {R"({"fp16": {"enabled": true, "initial_scale_power": 12, "loss_scale": 128}})",
       {{"precision", "fp16"}, {"loss_scale.kind", "constant"}, {"loss_scale.initial", "128"}}},
      {R"({"optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.99], "eps": 1e-7,
           "weight_decay": 3e-7, "adam_w_mode": true, "torch_adam": true}}})",
       {{"optimizer.kind", "adamw"},
        {"optimizer.learning_rate", "3.0e-05"},
        {"optimizer.beta1", "0.8"},
        {"optimizer.beta2", "0.99"},
        {"optimizer.epsilon", "1.0e-07"},
        {"optimizer.weight_decay", "3.0e-07"}}},
      {R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.5, "nesterov": true}}})",
       {{"optimizer.momentum", "0.5"}, {"optimizer.nesterov", "true"}}},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.25, "warmup_max_lr": 0.5,
           "warmup_num_steps": 10, "warmup_type": "linear"}}})",
       {{"schedule.kind", "constant"},
        {"schedule.warmup_start", "0.5"},
        {"optimizer.learning_rate", "0.5"},
        {"schedule.warmup_steps", "10"}}},
      {R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": 100,
           "warmup_min_lr": 0}}})",
       {{"schedule.kind", "polynomial"}, {"schedule.steps", "100"}}},
      {R"({"optimizer": {"params": {"lr": 0.5}}, "scheduler": {"type": "WarmupCosineLR", "params":
           {"cos_min_ratio": 0.5, "warmup_min_ratio": 0.25, "warmup_num_steps": 3}}})",
       {{"optimizer.learning_rate", "0.5"},
        {"schedule.final_learning_rate", "0.25"},
        {"schedule.warmup_start", "0.25"},
        {"schedule.warmup_steps", "3"}}},
      {R"({"activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": false}})", {}}};
  for (const auto& [json, expected] : cases) EXPECT_EQ(deepspeed(json), expected) << json;
}

TEST_F(OtherPrograms, DeepSpeedsFileMayHaveCommentsAndTabs) {
  EXPECT_EQ(deepspeed("{ // \"stage\": 3\n\t\"zero_optimization\": { /* two\n lines */ \"stage\": 1 },\n"
                      "\t\"wandb\": {\"team\": \"a//b \\\" /* c\"}, \"steps_per_print\":5}"),
            (Values{{"train.shard", "optimizer"}, {"log.every_steps", "5"}}));
  EXPECT_EQ(deepspeed("{\"steps_per_print\": 5} /* no end"), (Values{{"log.every_steps", "5"}}));
  EXPECT_TRUE(has(refused({}, "{\"steps_per_print\": 5 // no end\n").front(), "ds.json:")) << "names the line";
  EXPECT_TRUE(has(refused({}, "// nothing\n[1]").front(), "ds.json")) << "names the file";
}

TEST_F(OtherPrograms, DeepSpeedComesAfterTheFilesAndBeforeTheOverrides) {
  const std::string yaml = file("schedule: {warmup_epochs: 1}\ntrain: {clip_norm: 2, accumulate: 3}\n", "a.yaml");
  const std::string json = file(
      "{\n \"gradient_clipping\": 1.5,\n \"gradient_accumulation_steps\": 4,\n"
      " \"scheduler\": {\"type\": \"WarmupLR\",\n"
      "  \"params\": {\"warmup_num_steps\": 7}}, \"dump_state\": true}",
      "ds.json");
  const Config config = parse({yaml, "train.accumulate=5"}, json);
  EXPECT_EQ(config.train.clip_norm, 1.5);
  EXPECT_EQ(config.train.accumulate, 5);
  EXPECT_EQ(config.schedule.warmup_steps, 7);
  EXPECT_EQ(config.schedule.warmup_epochs, 0) << "only one of the two may be set";
  EXPECT_EQ(config.origins.at("train.clip_norm"), json + ":2");
  EXPECT_EQ(config.origins.at("train.accumulate"), "command line");
  EXPECT_TRUE(has(to_yaml(config, true), "  clip_norm: 1.5  # " + json + ":2\n"));
  EXPECT_EQ(to_yaml(parse({file(to_yaml(config, true), "again.yaml")})), to_yaml(config));
  ASSERT_EQ(config.notes.size(), 2u);
  EXPECT_TRUE(has(config.notes[0], "the warm-up is linear")) << config.notes[0];
  EXPECT_TRUE(config.notes[1].ends_with("Lockstep has no use for dump_state")) << config.notes[1];
}

TEST_F(OtherPrograms, WhatDeepSpeedHasAloneIsRefusedWithItsPlaceAndARemedy) {
  const std::vector<std::string> lines = refused({},
                                                 "{\n\"zero_optimization\": {\n\"stage\": 3,   // more\n"
                                                 "\"cpu_offload_params\": true },\n\"gradient_cliping\": 1,\n"
                                                 "\"elasticity\": {\"enabled\": true}}");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].starts_with("ds.json:4: zero_optimization.cpu_offload_params=true: ")) << lines[0];
  EXPECT_TRUE(has(lines[0], "model.recompute=block")) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("ds.json:6: elasticity.enabled=true: this key is not known")) << lines[1];
  EXPECT_TRUE(has(lines[2], "gradient_cliping=1: this key is not known")) << lines[2];
  for (const char* json :
       {R"({"zero_optimization": {"stage": 4}})", R"({"zero_optimization": {"offload_param": {"device": "nvme"}}})",
        R"({"optimizer": {"type": "OneBitAdam"}})", R"({"optimizer": {"params": {"adam_w_mode": false}}})",
        R"({"scheduler": {"type": "OneCycle"}})", R"({"scheduler": {"params": {"warmup_type": "log"}}})",
        R"({"scheduler": {"params": {"warmup_min_lr": 0.1, "warmup_max_lr": "auto"}}})",
        R"({"scheduler": {"params": {"cos_min_ratio": 0.1}}})", R"({"fp16": {"initial_scale_power": "high"}})",
        R"({"bf16": {"bf16_optimizer_states": true}})", R"({"gradient_allreduce_op": "sum"})"})
    EXPECT_EQ(refused({}, json).size(), 1u) << json;
  EXPECT_TRUE(has(refused({}, "{\"train_batch_size\": 1.5}").front(), "ds.json:1: train.global_batch: expected"));
}

TEST_F(OtherPrograms, VariablesOfMakeAreTranslated) {
  const Config config =
      parse({"TRAIN_BATCH_SIZE=2", "TRAIN_GRAD_ACCUM=32", "TRAIN_LEARNING_RATE=1e-4", "MODEL_MAX_SEQ_LEN=512",
             "TRAIN_GRADIENT_CHECKPOINTING=True", "TRAIN_EPOCHS=7", "TRAIN_DATALOADER_NUM_WORKERS=8",
             "TRAIN_DATALOADER_PIN_MEMORY=true", "TUNING_LORA_R=16", "TRAIN_BF16=true", "MODEL_LOAD_IN_4BIT=false"});
  EXPECT_EQ(changed(config), (Values{{"train.global_batch", "0"},
                                     {"train.batch_per_rank", "2"},
                                     {"train.accumulate", "32"},
                                     {"train.epochs", "7"},
                                     {"optimizer.learning_rate", "0.0001"},
                                     {"data.sequence_length", "512"},
                                     {"model.recompute", "block"},
                                     {"data.readers", "8"},
                                     {"model.lora.rank", "16"},
                                     {"precision", "bf16"}}));
  EXPECT_EQ(config.origins.at("train.accumulate"), "command line: TRAIN_GRAD_ACCUM");
  EXPECT_EQ(refused({"TRAIN_FOO=1", "TRAIN_BF16=false", "TRAIN_WARMUP_RATIO=0.1", "OTHER_FOO=1"}),
            (std::vector<std::string>{
                "command line: TRAIN_FOO: there is no key train.foo; `lockstep help config train` lists the keys of "
                "that group",
                "command line: TRAIN_BF16: there is no key train.bf16; the nearest is precision=bf16",
                "command line: TRAIN_WARMUP_RATIO: there is no key train.warmup_ratio; the nearest is "
                "schedule.warmup_epochs",
                "command line: there is no key OTHER_FOO"}));
  EXPECT_EQ(refused({file("TRAIN_BATCH_SIZE: 1\n", "a.yaml")}).size(), 1u) << "a file is not make's command line";
}

TEST_F(OtherPrograms, AllUnknownKeysOfAFileAreNamedAtOnce) {
  const std::vector<std::string> lines = refused({file(R"(model: {name: "google/gemma-3-27b-it", max_seq_len: 2048}
tuning:
  mode: qlora
  lora: {r: 32, alpha: 64, dropout: 0.1}
train: {batch_size: auto, ddp_broadcast_buffers: false}
peft: {lora_target_modules: [q_proj]}
trainer: {accumulate_grad_batches: 4}
)",
                                                       "theirs.yaml")});
  const std::vector<std::pair<std::string, std::string>> expected{
      {"theirs.yaml:1: ", "model.from"},
      {"theirs.yaml:1: ", "data.sequence_length"},
      {"theirs.yaml:3: ", "model.lora.rank=N, for QLoRA with model.base_precision=nf4"},
      {"theirs.yaml:4: ", "model.lora.rank"},
      {"theirs.yaml:4: ", "model.lora.alpha"},
      {"theirs.yaml:4: ", "model.lora.dropout"},
      {"theirs.yaml:5: ", "train.batch_per_rank"},
      {"theirs.yaml:5: ", "remove it"},
      {"theirs.yaml:6: ", "model.lora.targets"},
      {"theirs.yaml:7: ", "train.accumulate"}};
  ASSERT_EQ(lines.size(), expected.size());
  for (std::size_t i = 0; i < lines.size(); ++i)
    EXPECT_TRUE(lines[i].starts_with(expected[i].first) && lines[i].ends_with(expected[i].second)) << lines[i];
  std::string many;
  for (int i = 0; i < 30; ++i) many += "unknown" + std::to_string(i) + ": 1\n";
  EXPECT_EQ(refused({file(many, "many.yaml")}).back(), "and 10 more");
}

/// Compares the table of docs/coming-from.md with that of the program: `theirs`, `theirs` | `ours` or nothing.
TEST_F(OtherPrograms, TheDocumentationHasTheSameKeys) {
  std::set<std::pair<std::string, std::string>> documented, known;
  std::ifstream page("docs/coming-from.md");
  bool is_table = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) is_table = line == "## Keys";
    if (!is_table || !line.starts_with("| `")) continue;
    std::vector<std::string> cells[2];
    int cell = 0;
    for (std::size_t i = 1; i < line.size(); ++i) {
      if (line[i] == '|') ++cell;
      if (line[i] != '`' || cell > 1) continue;
      const std::size_t end = line.find('`', i + 1);
      cells[cell].push_back(line.substr(i + 1, end - i - 1));
      i = end;
    }
    for (const std::string& theirs : cells[0]) documented.emplace(theirs, cells[1].empty() ? "" : cells[1].front());
  }
  for (const auto& [theirs, ours] : keys_of_other_programs()) known.emplace(theirs, ours);
  EXPECT_EQ(documented, known);
  for (const auto& [theirs, ours] : known) EXPECT_TRUE(ours.empty() || find_key(ours) != nullptr) << ours;
}

}  // namespace
}  // namespace lockstep::config
