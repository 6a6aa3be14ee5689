// Models in checkpoints and .safetensors files: the same weights, and what each records of the model.
#include "checkpoint/model_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/reader.h"
#include "checkpoint/tensor_names.h"
#include "support.h"

namespace lockstep::checkpoint::test {
namespace {

StateJson described_state() {
  StateJson state = small_state();
  state["inference"] = {{"mean", {0.5, 0.25, 0.125}}, {"class_names", {"cat", "dög"}}};
  return state;
}

TEST(ModelFile, ACheckpointAndItsExportHoldTheSameModel) {
  const ScratchDirectory scratch;
  save_alone(scratch.file("a.h5"), small_model(), described_state());
  const ModelFile checkpoint = read_model_file(scratch.file("a.h5"));
  EXPECT_EQ(checkpoint.state.at("inference"), described_state().at("inference"));
  EXPECT_EQ(checkpoint.tensors.size(), small_model().size() - 1) << "all but the optimizer's";

  write_safetensors(scratch.file("a.safetensors"), to_torchvision(load_all(scratch.file("a.h5")), 1200),
                    export_metadata(checkpoint.state));
  EXPECT_EQ(SafetensorsFile::open(scratch.file("a.safetensors"))->metadata().at("format"), "pt");
  const ModelFile exported = read_model_file(scratch.file("a.safetensors"));
  for (const char* key : {"model", "inference", "precision", "step"})
    EXPECT_EQ(exported.state.at(key), described_state().at(key)) << key;
  EXPECT_FALSE(exported.state.contains("seed"));
  for (const NamedTensor& tensor : checkpoint.tensors) {
    const auto found = std::ranges::find(exported.tensors, tensor.name, &NamedTensor::name);
    ASSERT_NE(found, exported.tensors.end()) << tensor.name;
    EXPECT_EQ(found->values(), tensor.values()) << tensor.name;
  }
}

TEST(ModelFile, AForeignFileRecordsNothing) {
  const ScratchDirectory scratch;
  const std::vector<NamedTensor> tensors = {{"fc.bias", {2}, std::vector<float>{1, 2}}};
  write_safetensors(scratch.file("plain.safetensors"), tensors, {});
  EXPECT_TRUE(read_model_file(scratch.file("plain.safetensors")).state.empty());
  write_safetensors(scratch.file("other.safetensors"), tensors, {{"format", "pt"}});
  EXPECT_TRUE(read_model_file(scratch.file("other.safetensors")).state.empty());
}

TEST(ModelFile, DamagedEntriesAreNamed) {
  const ScratchDirectory scratch;
  const auto damage_of = [&](const std::string& name) -> std::string {
    try {
      read_model_file(scratch.file(name));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::checkpoint_damaged) << error.what();
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      return error.what();
    }
    return "no error";
  };
  const auto with = [&](const std::string& metadata) {
    write_safetensors(scratch.file("a.safetensors"), {{"fc.bias", {2}, std::vector<float>{1, 2}}},
                      {{"lockstep", metadata}});
    return damage_of("a.safetensors");
  };
  EXPECT_EQ(with("{}"), "no error");
  EXPECT_NE(with("not JSON").find("lockstep in its metadata: expected a JSON object, found not JSON"),
            std::string::npos);
  EXPECT_NE(with("[1]").find("expected a JSON object"), std::string::npos);
  EXPECT_NE(with(R"({"model": 7})").find("model: expected an object with the keys of the model, found 7"),
            std::string::npos);
  EXPECT_NE(with(R"({"inference": []})").find("inference: expected an object"), std::string::npos);
  EXPECT_NE(with(R"({"precision": 32})").find("precision: expected a text, found 32"), std::string::npos);
  EXPECT_NE(with(R"({"step": "many"})").find("step: expected a whole number, found \"many\""), std::string::npos);
  StateJson state = small_state();
  state["layout_version"] = "one";
  save_alone(scratch.file("a.h5"), small_model(), state);
  EXPECT_NE(damage_of("a.h5").find("layout_version: expected a whole number, found \"one\""), std::string::npos);
}

// 20,000 names take more than the 64 KiB that HDF5 stores for an attribute in an object's header.
TEST(ModelFile, ACheckpointRecordsTheNamesOfManyClasses) {
  const ScratchDirectory scratch;
  StateJson state = small_state();
  std::vector<std::string> names;
  for (int i = 0; i < 20000; ++i) names.push_back("class " + std::to_string(i));
  state["inference"] = {{"class_names", names}};
  save_alone(scratch.file("a.h5"), small_model(), state);
  EXPECT_TRUE(Reader(scratch.file("a.h5")).state().at("inference") == state.at("inference"));
  EXPECT_TRUE(verify(scratch.file("a.h5")).good);
}

}  // namespace
}  // namespace lockstep::checkpoint::test
