// Configurations from files and the command line: which setting wins, which are rejected with which message, and
// writing a configuration back.
#include "config/parser.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "config/parameter_groups.h"
#include "config/table.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

class ParserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_config_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    ::setenv("LOCKSTEP_TEST_DATA", "/scratch/my data: {x} #1", 1);
    ::unsetenv("LOCKSTEP_TEST_UNSET");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file(const std::string& text, const std::string& name = "a.yaml") {
    const std::string path = directory_ / name;
    std::ofstream(path) << text;
    return path;
  }

  /// Expects this error with a message that ends in `ending` (the directory at its start varies).
  static void expect_error(const std::vector<std::string>& arguments, ErrorCode code, const std::string& ending) {
    try {
      parse(arguments);
      ADD_FAILURE() << "no error; expected: " << ending;
    } catch (const Error& e) {
      EXPECT_EQ(entry(e.code()).code, entry(code).code) << e.what();
      EXPECT_TRUE(std::string(e.what()).ends_with(ending)) << e.what() << "\nexpected the ending: " << ending;
      EXPECT_EQ(entry(e.code()).exit_status, kExitUsage);
    }
  }

  std::filesystem::path directory_;
};

TEST_F(ParserTest, WithoutArgumentsTheDefaultsApply) {
  const Config config = parse({});
  EXPECT_EQ(to_yaml(config), to_yaml(Config{}));
  EXPECT_EQ(config.train.global_batch, 128);
}

TEST_F(ParserTest, ReadsAllTypes) {
  const Config c = parse({file(R"(# a comment with ${NOT A VARIABLE}
run:        {name: resnet18-cifar10, directory: runs, seed: 7}
device:     cpu
precision:  bf16
model:      {family: resnet, depth: 50, stem: imagenet, classes: 1000, initialize_from: ""}
data:
  train: a.h5
  validation:
  shuffle: off
  augment: [crop, flip]
  mean: [0.5, 1.0e-1, .25]
  std: auto
optimizer.learning_rate: 1e-3
schedule:
log:        {ranks: all}
cpu:        {threads: 4}
)")});
  EXPECT_EQ(c.run.name, "resnet18-cifar10");
  EXPECT_EQ(c.run.seed, 7u);
  EXPECT_EQ(c.precision, Precision::bf16);
  EXPECT_EQ(c.model.depth, 50);
  EXPECT_EQ(c.model.stem, "imagenet");
  EXPECT_EQ(c.data.validation, "");
  EXPECT_FALSE(c.data.shuffle);
  EXPECT_EQ(c.data.augment, (std::vector<std::string>{"crop", "flip"}));
  EXPECT_EQ(c.data.mean, (std::vector<double>{0.5, 0.1, 0.25}));
  EXPECT_TRUE(c.data.std.empty());
  EXPECT_EQ(c.optimizer.learning_rate, 1e-3);
  EXPECT_TRUE(c.log.all_ranks);
  EXPECT_EQ(c.cpu.threads, 4);
  EXPECT_EQ(parse({"cpu.threads=4", "cpu.threads=auto"}).cpu.threads, 0);
}

TEST_F(ParserTest, ThePrecisionIsAutomaticUnlessItIsGiven) {
  EXPECT_TRUE(parse({}).precision_is_automatic);
  EXPECT_EQ(parse({"precision=bf16", "precision=auto"}).precision_is_automatic, true);
  const Config given = parse({"precision=auto", "precision=fp16"});
  EXPECT_EQ(given.precision, Precision::fp16);
  EXPECT_FALSE(given.precision_is_automatic);
}

TEST_F(ParserTest, AHardwareFileIsForFamilies) {
  const std::string hardware = file("hardware: {families: [resnet]}\n");
  EXPECT_NO_THROW(parse({hardware}));
  expect_error({hardware, "model.family=llama"}, ErrorCode::config_conflict, "or none");
}

TEST_F(ParserTest, LaterSettingsWin) {
  const std::string first = file("train: {epochs: 5}\nrun: {seed: 2}\n", "first.yaml");
  const std::string second = file("train: {epochs: 6}\n", "second.yaml");
  EXPECT_EQ(parse({first, second}).train.epochs, 6);
  EXPECT_EQ(parse({first, second}).run.seed, 2u);
  EXPECT_EQ(parse({second, first}).train.epochs, 5);
  EXPECT_EQ(parse({first, "train.epochs=7", second}).train.epochs, 6);
  EXPECT_EQ(parse({first, second, "train.epochs=7", "train.epochs=8"}).train.epochs, 8);
}

TEST_F(ParserTest, AKeyThatIsGivenTwiceInAFileIsRefusedWithBothLines) {
  expect_error({file("train:\n  epochs: 5\n  accumulate: 2\n  epochs: 6\n")}, ErrorCode::config_unreadable,
               "a.yaml:4: train.epochs is given twice, first in " + (directory_ / "a.yaml").string() +
                   ":2; remove one of the two");
  expect_error(
      {file("train: {epochs: 5}\nrun: {seed: 3}\ntrain: {accumulate: 4}\n")}, ErrorCode::config_unreadable,
      "a.yaml:3: train is given twice, first in " + (directory_ / "a.yaml").string() + ":1; remove one of the two");
  expect_error({file("train: {epochs: 5}\ntrain.epochs: 6\n")}, ErrorCode::config_unreadable,
               ":1; remove one of the two");
  expect_error({"train={epochs: 5, epochs: 6}"}, ErrorCode::config_unreadable,
               "command line: train.epochs is given twice, first in command line; remove one of the two");
  EXPECT_EQ(parse({file("train: {epochs: 5}\noptimizer.kind: adamw\noptimizer: {beta1: 0.5}\n")}).train.epochs, 5);
}

TEST_F(ParserTest, OverrideValuesAreYaml) {
  EXPECT_EQ(parse({"data.augment=[crop, flip]"}).data.augment.size(), 2u);
  EXPECT_TRUE(parse({"data.augment=[crop]", "data.augment=[]"}).data.augment.empty());
  EXPECT_EQ(parse({"run.name='a=b # c'"}).run.name, "a=b # c");
  EXPECT_EQ(parse({"data.train="}).data.train, "");
  EXPECT_EQ(parse({"checkpoint.name=step-{step}"}).checkpoint.name, "step-{step}");
  EXPECT_EQ(parse({"checkpoint.name={model}-{step}"}).checkpoint.name, "{model}-{step}");
  for (const char* name : {"exp #1", "#2", "{a} #3"})  // no comments, as in a file
    EXPECT_EQ(parse({std::string("run.name=") + name}).run.name, name);
  EXPECT_EQ(parse({"run.name='a #1'"}).run.name, "a #1");
  EXPECT_EQ(parse({"train={epochs: 9, accumulate: 2}"}).train.epochs, 9);
}

TEST_F(ParserTest, EnvironmentIsExpandedButNeverReadAsYaml) {
  const std::string expected = "/scratch/my data: {x} #1/a.h5";
  EXPECT_EQ(parse({file("data: {train: ${LOCKSTEP_TEST_DATA}/a.h5, shuffle: no}\n")}).data.train, expected);
  EXPECT_EQ(parse({file("data:\n  train: \"${LOCKSTEP_TEST_DATA}/a.h5\"\n")}).data.train, expected);
  EXPECT_EQ(parse({"data.train=${LOCKSTEP_TEST_DATA}/a.h5"}).data.train, expected);
  expect_error({file("run: {seed: 1}\ndata:\n  train: ${LOCKSTEP_TEST_UNSET}/a.h5\n")}, ErrorCode::config_invalid,
               "a.yaml:3: data.train: ${LOCKSTEP_TEST_UNSET} is not set in the environment: export it, or write the "
               "value itself");
  expect_error({"data.train=${}"}, ErrorCode::config_invalid,
               "expected the name of an environment variable in ${...}, found ${}");
}

TEST_F(ParserTest, AVariableWithoutItsEndIsRefused) {
  expect_error({file("data:\n  train: ${LOCKSTEP_TEST_DATA/a.h5\n")}, ErrorCode::config_invalid,
               "a.yaml:2: data.train: expected ${NAME} with the name of an environment variable, found "
               "${LOCKSTEP_TEST_DATA/a.h5");
  expect_error({file("data: {train: ${LOCKSTEP_TEST_DATA/a.h5}\n")}, ErrorCode::config_invalid,
               "found ${LOCKSTEP_TEST_DATA/a.h5");
  expect_error({"run.name=a${"}, ErrorCode::config_invalid, "found a${");
  expect_error({file("data: {train: ${NOT A VARIABLE}}\n")}, ErrorCode::config_unreadable,
               "`${` must be followed by NAME and `}`");
}

TEST_F(ParserTest, AnOverriddenValueIsNotExpanded) {
  const std::string path = file("data: {train: ${LOCKSTEP_TEST_UNSET}/a.h5, augment: [\"${LOCKSTEP_TEST_UNSET}\"]}\n");
  EXPECT_EQ(parse({path, "data.train=synthetic", "data.augment=[]"}).data.train, "synthetic");
  expect_error(
      {path, "data.train=synthetic"}, ErrorCode::config_invalid,
      "data.augment: ${LOCKSTEP_TEST_UNSET} is not set in the environment: export it, or write the value itself");
  expect_error({"data.train=synthetic", path}, ErrorCode::config_invalid, "export it, or write the value itself");
  // The type of an overridden value is still checked.
  expect_error({"train.epochs=x", "train.epochs=3"}, ErrorCode::config_invalid, "found \"x\"");
}

TEST_F(ParserTest, NamesOfDirectoriesAreRefusedIfTheyCannotBeWritten) {
  expect_error({file("run: {name: \"a\\0b\"}\n")}, ErrorCode::config_invalid, "found \"a\\x00b\"");
  expect_error({file("run: {directory: \"a\\nb\"}\n")}, ErrorCode::config_invalid,
               "a.yaml:1: run.directory: expected a name without control characters, found \"a\\x0ab\"");
  expect_error({"run.name=a\x7f"}, ErrorCode::config_invalid, "without control characters, found \"a\\x7f\"");
  expect_error({"run.name=caf\xe9"}, ErrorCode::config_invalid,
               "command line: run.name: expected text in UTF-8, found the byte 0xe9 in \"caf\\xe9\"");
  for (const char* bad : {"\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"})
    expect_error({std::string("run.name=") + bad}, ErrorCode::config_invalid, std::string("\""));
  EXPECT_EQ(parse({"run.name=caf\xc3\xa9-\xe2\x82\xac-\xf0\x9f\x98\x80"}).run.name.size(), 14u);
  expect_error({"run.name=" + std::string(256, 'a')}, ErrorCode::config_invalid,
               "run.name: expected a name of at most 240 bytes (a path of at most 3000), found one of 256");
  expect_error({"run.directory=/tmp/" + std::string(256, 'a')}, ErrorCode::config_invalid, "found one of 256");
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += std::string(49, 'a') + "/";
  expect_error({"run.directory=" + deep}, ErrorCode::config_invalid, "found one of 5000");
  EXPECT_EQ(parse({"run.name=a/" + std::string(240, 'b')}).run.name.size(), 242u);
}

TEST_F(ParserTest, UnknownKeysAreReportedWithTheNearestKey) {
  expect_error({file("run: {seed: 1}\n\ntrain:\n  epochs: 3\n  global_bach: 64\n")}, ErrorCode::config_invalid,
               "a.yaml:5: there is no key train.global_bach; the nearest is train.global_batch");
  expect_error({"trian.epochs=3"}, ErrorCode::config_invalid,
               "command line: there is no key trian.epochs; the nearest is train.epochs");
  expect_error({"epochs=3"}, ErrorCode::config_invalid, "the nearest is train.epochs");
  expect_error({"train.lr=3"}, ErrorCode::config_invalid, "the nearest is optimizer.learning_rate");
  expect_error({"train.epochs.x=3"}, ErrorCode::config_invalid, "the nearest is train.epochs");
  expect_error({"train.learning_rate=3"}, ErrorCode::config_invalid, "the nearest is optimizer.learning_rate");
  expect_error({"train.momentum=3"}, ErrorCode::config_invalid,
               "the nearest are optimizer.momentum, batch_norm.momentum");
  expect_error({"train.bacth=3"}, ErrorCode::config_invalid,
               "there is no key train.bacth; the nearest are train.global_batch, train.batch_per_rank");
}

TEST_F(ParserTest, NoKeyIsNamedIfNoneIsNear) {
  expect_error({"train.swing=3"}, ErrorCode::config_invalid,
               "there is no key train.swing; `lockstep help config train` lists the keys of that group");
  expect_error({"trian.swing=3"}, ErrorCode::config_invalid,
               "the nearest group is train; `lockstep help config train` lists the keys of that group");
  expect_error({"bacth_norm=3"}, ErrorCode::config_invalid,
               "the nearest group is batch_norm; `lockstep help config batch_norm` lists the keys of that group");
  expect_error({"zzzzzz.qqqqqq=3"}, ErrorCode::config_invalid, "command line: there is no key zzzzzz.qqqqqq");
}

TEST_F(ParserTest, WrongTypesAreReportedWithTheExpectedType) {
  expect_error({file("train:\n  epochs: three\n")}, ErrorCode::config_invalid,
               "a.yaml:2: train.epochs: expected a whole number, 1 to 2147483647, found \"three\"");
  expect_error({"train.epochs=2.5"}, ErrorCode::config_invalid, "found \"2.5\"");
  expect_error({"train.epochs="}, ErrorCode::config_invalid, "found nothing");
  expect_error({"train.epochs=[1, 2]"}, ErrorCode::config_invalid, "found [1, 2]");
  expect_error({"data.shuffle=maybe"}, ErrorCode::config_invalid, "expected one of true | false, found \"maybe\"");
  expect_error({"optimizer.momentum=.9x"}, ErrorCode::config_invalid, "expected a number, 0 to below 1, found \".9x\"");
  expect_error({"optimizer.learning_rate=nan"}, ErrorCode::config_invalid, "found \"nan\"");
  expect_error({"data.augment=crop"}, ErrorCode::config_invalid, "found \"crop\"");
  expect_error({"data.mean=0.5"}, ErrorCode::config_invalid,
               "expected one of auto | [NUMBER, ...], each 0 to 1, found \"0.5\"");
  expect_error({"run.name=[a]"}, ErrorCode::config_invalid, "found [a]");
  expect_error({"train=3"}, ErrorCode::config_invalid, "train is a group of keys: expected `train: {key: value}`");
}

TEST_F(ParserTest, ImpossibleValuesAreReportedWithThePossibleOnes) {
  expect_error({"train.epochs=0"}, ErrorCode::config_invalid, "expected a whole number, 1 to 2147483647, found \"0\"");
  expect_error({"train.accumulate=0"}, ErrorCode::config_invalid, "found \"0\"");
  expect_error({"run.seed=4294967296"}, ErrorCode::config_invalid, "0 to 4294967295, found \"4294967296\"");
  expect_error({"train.max_steps=99999999999999999999"}, ErrorCode::config_invalid, "found \"99999999999999999999\"");
  expect_error({"precision=int8"}, ErrorCode::config_invalid,
               "expected one of auto | fp32 | tf32 | bf16 | fp16 | fp8, found \"int8\"");
  expect_error({"schedule.kind=linear"}, ErrorCode::config_invalid,
               "expected one of constant | step | cosine | polynomial, found \"linear\"");
  expect_error({"model.depth=100"}, ErrorCode::config_invalid,
               "expected one of 18 | 34 | 50 | 101 | 152, found \"100\"");
  expect_error({"model.stem=big"}, ErrorCode::config_invalid, "expected one of cifar | imagenet, found \"big\"");
  expect_error({"log.ranks=2"}, ErrorCode::config_invalid, "expected one of zero | all, found \"2\"");
  expect_error({"data.augment=[crop, flap]"}, ErrorCode::config_invalid, "found [crop, flap]");
  expect_error({"data.augment=[crop, crop]"}, ErrorCode::config_invalid, "found [crop, crop]");
  expect_error({"data.std=[0.2, 0, 0.2]"}, ErrorCode::config_invalid, "found [0.2, 0, 0.2]");
  expect_error({"cpu.threads=0"}, ErrorCode::config_invalid, "expected one of auto | 1 to 1024, found \"0\"");
  expect_error({"optimizer.momentum=1"}, ErrorCode::config_invalid, "expected a number, 0 to below 1, found \"1\"");
  expect_error({"run.name=../elsewhere"}, ErrorCode::config_invalid, "found \"../elsewhere\"");
  expect_error({"checkpoint.name=latest"}, ErrorCode::config_invalid, "found \"latest\"");
  expect_error({"checkpoint.name=of-{model}"}, ErrorCode::config_invalid,
               "all checkpoints have the same name, found \"of-{model}\"");
  expect_error({"checkpoint.name=a/{step}"}, ErrorCode::config_invalid, "found \"a/{step}\"");
  expect_error({"checkpoint.name=s-{step}-{epochs}"}, ErrorCode::config_invalid,
               "has the unknown placeholder {epochs}; the placeholders are {step}, {epoch}, {model}, {start}, {end}");
  expect_error({"checkpoint.name=s-{step}-{epoch"}, ErrorCode::config_invalid,
               "has the unknown placeholder {{epoch}; the placeholders are {step}, {epoch}, {model}, {start}, {end}");
}

TEST_F(ParserTest, ConflictingKeysAreReportedWithBothPlaces) {
  expect_error({file("schedule: {warmup_steps: 5}\n"), "schedule.warmup_epochs=1"}, ErrorCode::config_conflict,
               "found 1 and 5; set one to 0");
  try {
    parse({file("\nschedule: {warmup_steps: 5}\n"), "schedule.warmup_epochs=1"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("command line, "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("a.yaml:2: "), std::string::npos) << e.what();
  }
  expect_error({"train.global_batch=0"}, ErrorCode::config_conflict, "found 0 for both");
  expect_error({"train.global_batch=2", "train.accumulate=4"}, ErrorCode::config_conflict, "found 2 and 4");
  expect_error({"data.start=10"}, ErrorCode::config_conflict, "found start 10 and end 0");
  expect_error({"data.mean=[0.5]", "data.std=[0.5, 0.5]"}, ErrorCode::config_conflict, "found 1 and 2");
  expect_error({"optimizer.nesterov=true", "optimizer.momentum=0"}, ErrorCode::config_conflict, "found sgd and 0");
  expect_error({"schedule.steps=10", "schedule.warmup_steps=11"}, ErrorCode::config_conflict, "found 11 and 10");
  expect_error({"schedule.warmup_start=1.5"}, ErrorCode::config_invalid, "expected a number, 0 to 1, found \"1.5\"");
  expect_error({"schedule.warmup_epochs=4"}, ErrorCode::config_conflict, "found 4 and 3");
  expect_error({"schedule.final_learning_rate=1"}, ErrorCode::config_conflict, "found 1 and 0.1");
  expect_error({"train.micro_batches=3"}, ErrorCode::config_conflict, "found 3 and 128; 2 is possible");
  expect_error({"train.micro_batches=4", "train.batch_per_rank=8"}, ErrorCode::config_conflict,
               "set train.global_batch after train.batch_per_rank, or train.micro_batches=0");
  expect_error({"train.micro_batches=4", "train.accumulate=2"}, ErrorCode::config_conflict,
               "set train.accumulate to 1, found 2");
  expect_error({"train.micro_batches=4", "batch_norm.synchronize=true"}, ErrorCode::config_conflict,
               "or train.micro_batches to 0");
}

TEST_F(ParserTest, TheLaterOfTheTwoBatchKeysWins) {
  const std::string both = file("train: {global_batch: 64, batch_per_rank: 16}\n", "both.yaml");
  EXPECT_EQ(parse({both}).train.global_batch, 0);
  EXPECT_EQ(parse({both}).train.batch_per_rank, 16);
  EXPECT_EQ(parse({both, "train.global_batch=96"}).train.global_batch, 96);
  EXPECT_EQ(parse({both, "train.global_batch=96"}).train.batch_per_rank, 0);
  EXPECT_EQ(parse({"train.batch_per_rank=8"}).train.global_batch, 0);
  EXPECT_EQ(parse({"train.batch_per_rank=auto"}).train.global_batch, 0);
  EXPECT_EQ(parse({"train.batch_per_rank=auto"}).train.batch_per_rank, Config::kAuto);
  EXPECT_EQ(parse({"train.accumulate=auto"}).train.accumulate, Config::kAuto);
  EXPECT_EQ(parse({file(to_yaml(parse({"train.batch_per_rank=auto"})), "auto.yaml")}).train.batch_per_rank,
            Config::kAuto);
  EXPECT_EQ(parse({"train.global_batch=64", "train.batch_per_rank=0"}).train.global_batch, 64);
}

TEST_F(ParserTest, ADirectoryDescribesItsModelUnlessModelConfigComesLater) {
  const std::string preset = file("model: {family: llama, config: smollm-135m}\n", "preset.yaml");
  EXPECT_EQ(parse({preset, "model.from=a-model"}).model.config, "");
  EXPECT_EQ(parse({preset, "model.from=a-model", "model.config=qwen2-0.5b"}).model.config, "qwen2-0.5b");
  EXPECT_EQ(parse({preset, "model.from=none"}).model.config, "smollm-135m");
  const Config both = parse({"model.from=a-model", "model.config=smollm-135m"});
  EXPECT_EQ(parse({file(to_yaml(both), "both.yaml")}).model.config, "smollm-135m");
}

TEST_F(ParserTest, TargetsOfAdaptersHaveTheNamesOfPeftToo) {
  const auto targets = [](const std::string& value) {
    return parse({"model.lora.targets=" + value}).model.lora.targets;
  };
  const std::vector<std::string> all = Config::Model::Lora{}.targets;
  EXPECT_EQ(targets("[q_proj, v, down_proj]"), (std::vector<std::string>{"q", "v", "down"}));
  EXPECT_EQ(targets("all-linear"), all);
  EXPECT_EQ(targets("[all-linear]"), all);
  for (const char* value : {"[q, q_proj]", "[all-linear, q]", "[proj]", "[_proj]", "[lm_head]", "q_proj_proj"})
    EXPECT_THROW(targets(value), Error) << value;
}

TEST_F(ParserTest, ReproducibleRunsHaveAFixedNumberOfThreads) {
  EXPECT_EQ(parse({}).cpu.threads, 0);
  EXPECT_EQ(parse({"reproducible=true"}).cpu.threads, 1);
  EXPECT_EQ(parse({"reproducible=true", "cpu.threads=3"}).cpu.threads, 3);
  const auto differences =
      learning_differences(to_yaml(parse({"reproducible=true"})), parse({"reproducible=true", "cpu.threads=2"}));
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].key, "cpu.threads");
  EXPECT_FALSE(differences[0].allowed);
  EXPECT_NE(learning_yaml(parse({"reproducible=true"})).find("threads: 1"), std::string::npos);
  EXPECT_EQ(learning_yaml(parse({})).find("threads"), std::string::npos);
}

TEST_F(ParserTest, BadFilesAreReported) {
  expect_error({directory_ / "absent.yaml"}, ErrorCode::config_unreadable, "absent.yaml: No such file or directory");
  expect_error({directory_}, ErrorCode::config_unreadable, "is not a regular file; expected a file, found a folder");
  expect_error({"train.epochs", "3"}, ErrorCode::config_unreadable,
               "to set the key, write train.epochs=VALUE without blanks");
  expect_error({file("- a\n- b\n")}, ErrorCode::config_unreadable, "expected lines of `key: value`, found a list");
  expect_error({file("run: {seed: 1}\n---\nrun: {seed: 2}\n")}, ErrorCode::config_unreadable,
               "or a text or `,` that belongs to nothing)");
  expect_error({file("[a]: 3\n")}, ErrorCode::config_unreadable,
               "a.yaml:1: expected `key: value`, found a key that is not a name");
  try {
    parse({file("run: {seed: 1}\ntrain:\n  epochs: [1\n")});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::config_unreadable);
    EXPECT_NE(std::string(e.what()).find("a.yaml:"), std::string::npos) << e.what();
  }
  expect_error({file("")}, ErrorCode::config_unreadable, "a.yaml is empty; expected lines of `key: value`");
  expect_error({file(" \n\n")}, ErrorCode::config_unreadable, "a.yaml is empty; expected lines of `key: value`");
  EXPECT_EQ(parse({file("# train: {epochs: 7}\n")}).train.epochs, 3);
  expect_error({file(std::string("\x89HDF\r\n", 6))}, ErrorCode::config_unreadable, "found a byte 0x89 at offset 0");
  expect_error({file(std::string("run:\0", 5))}, ErrorCode::config_unreadable, "a.yaml, found a byte 0x00 at offset 4");
  expect_error({file("run: {seed: 2} # caf\xe9\n")}, ErrorCode::config_unreadable, "found a byte 0xe9 at offset 20");
  expect_error({"=3"}, ErrorCode::config_unreadable, "expected KEY=VALUE, found `=3` without a key");
  expect_error({""}, ErrorCode::config_unreadable, "found an empty argument");
  expect_error({"train.epochs =3"}, ErrorCode::config_unreadable,
               "to set a key, write KEY=VALUE without blanks before the `=`");
  EXPECT_EQ(parse({file("train: &a\n  epochs: 4\n")}).train.epochs, 4);
  expect_error({file("train: &a {epochs: *a}\n")}, ErrorCode::config_invalid,
               "a text that begins with { or contains `: ` needs quotes");
  expect_error({file("train: &a {b: *a}\n")}, ErrorCode::config_invalid, "lists the keys of that group");
}

TEST_F(ParserTest, SyntaxErrorsAreExplained) {
  expect_error({file("run: {seed: 1\n")}, ErrorCode::config_unreadable,
               "a `{` is not closed by `}`, or a key is not followed by `: value`");
  expect_error({file("run:\n\tseed: 1\n")}, ErrorCode::config_unreadable,
               "a line is indented with a tab; YAML allows only blanks, found: \\x09seed: 1");
  expect_error({file("run: seed: 1\n")}, ErrorCode::config_unreadable, "found: run: seed: 1");
  expect_error({file("run:\n  name: @a\n")}, ErrorCode::config_unreadable, "found:   name: @a");
  expect_error({file("run:\n  name: *a\n")}, ErrorCode::config_unreadable,
               "a value that begins with * needs quotes, found:   name: *a");
  expect_error({"run.name=\"a"}, ErrorCode::config_unreadable, "a quoted text is not closed, found: \"a");
}

TEST_F(ParserTest, ACommaThatSeparatesNothingIsRefusedAtOnce) {
  for (const std::string text : {",", ",a", " , a", "\"a\", b", "[a], b", "'a',", "- a\n,", "\n,\n"}) {
    SCOPED_TRACE(text);
    expect_error({"train.epochs=" + text}, ErrorCode::config_unreadable, "");
    expect_error({file(text)}, ErrorCode::config_unreadable, "");
  }
}

TEST_F(ParserTest, AnAddressOfMlflowIsOfAServerAndHasNoPassword) {
  EXPECT_EQ(parse({"log.mlflow=http://[::1]:5000/a@b"}).log.mlflow, "http://[::1]:5000/a@b");
  for (const char* address :
       {"mlruns", "file:///tmp/a", "http://", "\"http:\"", "h", "http:///a", "\"http://a b\"", "http://a?b"})
    expect_error({std::string("log.mlflow=") + address}, ErrorCode::config_invalid,
                 "database, start `mlflow server --backend-store-uri ...`");
  expect_error({"log.mlflow=https://me:secret@host"}, ErrorCode::config_invalid,
               "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD");
  expect_error({"log.mlflow=http://a", "log.mlflow_experiment="}, ErrorCode::config_invalid,
               "log.mlflow_experiment: expected the name of an experiment, found nothing");
}

TEST_F(ParserTest, WrittenYamlIsReadBackUnchanged) {
  Config c = parse({"run.name='it''s \"x\": #{y}'", "data.mean=[0.1, 0.30000000000000004]", "data.std=[1e-8, 3]",
                    "train.batch_per_rank=7", "optimizer.epsilon=1e-12", "comm.bucket_mb=0.1", "cpu.threads=3",
                    "log.ranks=all", "precision=tf32", "data.augment=[flip]", "model.zero_gamma=yes"});
  c.data.train = "/data/${LOCKSTEP_TEST_UNSET}/\\x\t.h5";  // as if an environment variable contained this text
  c.data.validation = "true";
  const Config back = parse({file(to_yaml(c))});
  EXPECT_EQ(to_yaml(back), to_yaml(c));
  EXPECT_EQ(back.data.train, c.data.train);
  EXPECT_EQ(back.data.validation, "true");
  EXPECT_EQ(back.run.name, c.run.name);
  EXPECT_EQ(back.data.mean, c.data.mean);
  EXPECT_EQ(back.train.batch_per_rank, 7);
  EXPECT_EQ(back.train.global_batch, 0);
  EXPECT_EQ(back.optimizer.epsilon, 1e-12);
}

/// A value that the key accepts and that is not its default.
std::string other_value(const Key& key) {
  const std::vector<std::string> candidates = {
      "true",  "false",     "1",        "2",     "0.5",  "[crop]", "[0.5]", "text",     "cpu",      "bf16",
      "50",    "34",        "imagenet", "adamw", "step", "shared", "all",   "auto",     "constant", "block",
      "llama", "optimizer", "quick",    "on",    "[q]",  "nf4",    "epoch", "[resnet]", "none"};
  for (const std::string& candidate : candidates) {
    Value value{candidate.front() == '[', candidate, {}};
    if (value.is_list) value.items = {candidate.substr(1, candidate.size() - 2)};
    Config config;
    if (key.set(config, value) == Fit::good && key.get(config) != key.get(Config{})) return candidate;
  }
  return "";
}

TEST_F(ParserTest, EveryKeyCanBeSetPrintedAndReadBack) {
  // The base makes values greater than 0 possible for the warm-up start, the final learning rate and the validation
  // resize, and gives the evaluation something to evaluate.
  const std::vector<std::string> base = {"data.end=1000", "optimizer.learning_rate=3", "data.image_size=1",
                                         "data.validation=synthetic"};
  const Config before = parse(base);
  for (const Key& key : table()) {
    SCOPED_TRACE(key.name);
    EXPECT_FALSE(key.meaning.empty());
    EXPECT_EQ(find_key(key.name), &key);
    const std::string value = key.name == "checkpoint.name"             ? "epoch-{epoch}"
                              : key.name == "data.image_size"           ? "2"
                              : key.name == "optimizer.groups"          ? "[fc weight_decay=1]"
                              : key.name == "train.class_weights"       ? "[1,1,1,1,1,1,1,1,1,2]"
                              : key.name == "data.color_jitter"         ? "[0.4,0.4,0.4,0.1]"
                              : key.name == "log.mlflow"                ? "https://mlflow.example.org/team"
                              : key.name == "model.license"             ? "apache-2.0"
                              : key.name == "checkpoint.max_shard_size" ? "500MB"
                                                                        : other_value(key);
    ASSERT_NE(value, "");
    std::vector<std::string> arguments = base;
    arguments.push_back(key.name + "=" + value);
    const Config after = parse(arguments);
    int n_changed = 0;
    for (const Key& other : table()) n_changed += other.get(after) != other.get(before);
    // Setting the first also unsets train.global_batch, and setting the second also fixes cpu.threads.
    EXPECT_EQ(n_changed, key.name == "train.batch_per_rank" || key.name == "reproducible" ? 2 : 1);
    EXPECT_EQ(to_yaml(parse({file(to_yaml(after))})), to_yaml(after));
  }
}

TEST_F(ParserTest, HelpListsEveryKeyWithItsDefault) {
  const std::string help = help_text();
  for (const Key& key : table()) {
    if (key.is_hidden) {
      EXPECT_EQ(help.find(key.name + " "), std::string::npos) << key.name;
      continue;
    }
    const auto begin = help.find((key.effect == Effect::learning ? "\n* "
                                  : key.effect == Effect::fixed  ? "\n! "
                                                                 : "\n  ") +
                                 key.name + " ") +
                       1;
    ASSERT_NE(begin, 0u) << key.name;  // npos + 1
    const std::string line = help.substr(begin, help.find('\n', begin) - begin);
    EXPECT_NE(line.find(key.get(Config{})), std::string::npos) << line;
    EXPECT_NE(line.find(key.meaning), std::string::npos) << line;
  }
}

TEST_F(ParserTest, HelpExplainsOneKeyOrAGroup) {
  EXPECT_EQ(help_text({"train.global_batch"}).substr(0, 18), "train.global_batch");
  EXPECT_NE(help_text({"train.global_batch"}).find("can never change"), std::string::npos);
  const std::string kind = help_text({"optimizer.kind"});
  for (const char* part : {"sgd | adamw | lars", "only with --allow-change optimizer.kind", "optimizer: {kind: sgd}",
                           "optimizer.kind=sgd\n"})
    EXPECT_NE(kind.find(part), std::string::npos) << kind;
  const std::string group = help_text({"optimizer"});
  for (const Key& key : table())
    EXPECT_EQ(group.find(" " + key.name + " ") != std::string::npos, key.name.starts_with("optimizer.")) << key.name;
  for (const Key& key : table()) EXPECT_NE(help_text({key.name}).find(key.meaning), std::string::npos);
  try {
    help_text({"optimizer.knid"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "there is no key or group optimizer.knid; the nearest is optimizer.kind");
  }
}

TEST_F(ParserTest, FindsChangedKeysThatAffectLearning) {
  const Config before = parse({"data.train=a.h5", "run.name=x"});
  EXPECT_TRUE(learning_differences(to_yaml(before), before).empty());
  Config now = parse({"data.train=a.h5", "run.name=y", "device=cpu", "comm.bucket_mb=4", "log.every_steps=1",
                      "train.max_steps=5", "cpu.threads=2", "checkpoint.keep=9", "data.readers=2"});
  EXPECT_TRUE(learning_differences(to_yaml(before), now).empty());

  now.optimizer.learning_rate = 0.2;
  now.train.epochs = 9;
  now.data.train = "b.h5";
  const auto differences = learning_differences(to_yaml(before), now);
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].key, "data.train");
  EXPECT_EQ(differences[1].key, "train.epochs");
  EXPECT_TRUE(differences[1].allowed);
  EXPECT_EQ(differences[2].key, "optimizer.learning_rate");
  EXPECT_EQ(differences[2].before, "0.1");
  EXPECT_EQ(differences[2].now, "0.2");
  EXPECT_FALSE(differences[2].allowed);
}

TEST_F(ParserTest, GroupsOfParametersAreChecked) {
  const Config c = parse({"optimizer.groups=[fc.* learning_rate=1e-1 weight_decay=0, \"*.bn1 weight_decay=0.5\"]"});
  EXPECT_EQ(c.optimizer.groups,
            (std::vector<std::string>{"fc.* learning_rate=1e-1 weight_decay=0", "*.bn1 weight_decay=0.5"}));
  const ParameterGroup group = parse_parameter_group(c.optimizer.groups[0]);
  EXPECT_EQ(group.pattern, "fc.*");
  EXPECT_EQ(group.learning_rate, 0.1);
  EXPECT_EQ(group.weight_decay, 0.0);
  EXPECT_FALSE(parse_parameter_group(c.optimizer.groups[1]).learning_rate);
  for (const std::string bad : {"fc", "learning_rate=1", "fc.* momentum=0.1", "fc.* learning_rate=0.1x", "fc.* 0.1",
                                "fc.* learning_rate=1 learning_rate=2", "fc.* learning_rate="})
    expect_error({"optimizer.groups=[\"" + bad + "\"]"}, ErrorCode::config_invalid, "found \"" + bad + "\"");
  expect_error({"optimizer.groups=[fc learning_rate=-1]"}, ErrorCode::config_invalid,
               "command line: optimizer.groups: expected a learning_rate of 0 to 1e30, found -1 in \"fc "
               "learning_rate=-1\"");
  expect_error({"optimizer.groups=[fc learning_rate=0.1]", "optimizer.learning_rate=0"}, ErrorCode::config_conflict,
               "train.freeze selects parameters that are not trained");
}

TEST_F(ParserTest, TheResizeOfValidationImagesFitsTheirSize) {
  EXPECT_EQ(parse({"data.image_size=224", "data.validation_resize=232"}).data.validation_resize, 232);
  expect_error({"data.validation_resize=232"}, ErrorCode::config_conflict,
               "to which images are cropped after it, found 0");
  expect_error({"data.image_size=224", "data.validation_resize=200"}, ErrorCode::config_conflict, "found 200 and 224");
}

TEST_F(ParserTest, LearningYamlContainsNoPathAndNoRankCount) {
  const Config one = parse({"data.train=/a/x.h5", "run.directory=/a", "train.global_batch=64"});
  const Config other = parse({"data.train=/b/x.h5", "run.directory=/b", "train.global_batch=64", "cpu.threads=2",
                              "train.accumulate=2", "device=cpu"});
  EXPECT_EQ(learning_yaml(one), learning_yaml(other));
  EXPECT_EQ(learning_yaml(one).find("x.h5"), std::string::npos);
  EXPECT_TRUE(learning_differences(learning_yaml(one), other).empty());
  EXPECT_EQ(learning_differences(learning_yaml(one), parse({"train.global_batch=32"})).size(), 1u);
  // In one configuration, the number of ranks determines the batch: the number in the checkpoint is compared elsewhere.
  EXPECT_TRUE(learning_differences(learning_yaml(one), parse({"train.batch_per_rank=32"})).empty());
  // Keys of another release, and values that only it accepted, are ignored.
  EXPECT_TRUE(learning_differences("future: {key: 1}\nmodel: {depth: 1001}\n", one).empty());
}

}  // namespace
}  // namespace lockstep::config
