// safetensors, written and read back, malicious headers, and torchvision's names.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "checkpoint/tensor_names.h"
#include "models/resnet_table.h"
#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

std::string file_of(const std::string& header, std::size_t n_data_bytes) {
  std::uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(n_data_bytes, '\1');
}

NamedTensor tensor(const std::string& name, const Shape& shape, float first = 0.5f) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < shape.n_elements(); ++i) values.push_back(first + static_cast<float>(i));
  return {name, shape, std::move(values)};
}

TEST(Safetensors, RoundTrip) {
  ScratchDirectory scratch;
  const std::string path = scratch.file("model.safetensors");
  const std::vector<NamedTensor> tensors = {tensor("fc.weight", {3, 5}), tensor("bn1.num_batches_tracked", {}, 1200),
                                            tensor("conv1.weight", {2, 1, 3, 3}), tensor("a \"quoted\" name", {1})};
  write_safetensors(path, tensors, {{"format", "pt"}});
  EXPECT_EQ(scratch.n_entries(), 1u);
  const auto got = read_safetensors(path);
  ASSERT_EQ(got.size(), tensors.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const NamedTensor& expected = tensors[std::array{1, 0, 2, 3}[i]];  // the 8-byte integers come first
    EXPECT_EQ(got[i].name, expected.name);
    EXPECT_EQ(got[i].shape, expected.shape);
    EXPECT_EQ(got[i].values(), expected.values());
  }
  const std::string bytes = bytes_of_file(path);
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);  // so that the data is aligned in a mapped file
  EXPECT_NE(bytes.find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
  EXPECT_NE(bytes.find(R"("bn1.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[0,8]})"),
            std::string::npos);
}

TEST(Safetensors, ReadsOtherTypes) {
  ScratchDirectory scratch;
  const std::string path = scratch.file("a.safetensors");
  std::string bytes = file_of(
      R"({"h":{"dtype":"F16","shape":[5],"data_offsets":[0,10]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[10,14]},)"
      R"("d":{"dtype":"F64","shape":[1],"data_offsets":[14,22]},"i":{"dtype":"I64","shape":[],"data_offsets":[22,30]}})",
      0);
  const std::uint16_t half[5] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x3555};  // 1, -2, 2^-24, infinity, about 1/3
  const std::uint16_t bfloat[2] = {0x3f80, 0xc049};                        // 1, -3.140625
  const double number = 0.1;
  const std::int64_t integer = -7;
  bytes.append(reinterpret_cast<const char*>(half), 10).append(reinterpret_cast<const char*>(bfloat), 4);
  bytes.append(reinterpret_cast<const char*>(&number), 8).append(reinterpret_cast<const char*>(&integer), 8);
  write_file(path, bytes);
  const auto got = read_safetensors(path);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(got[0].values(), (std::vector<float>{1.0f, -2.0f, std::ldexp(1.0f, -24), INFINITY, 0.333251953125f}));
  EXPECT_EQ(got[1].values(), (std::vector<float>{1.0f, -3.140625f}));
  EXPECT_EQ(got[2].values(), std::vector<float>{0.1f});
  EXPECT_EQ(got[3].values(), std::vector<float>{-7.0f});
}

TEST(Safetensors, RejectsBadFiles) {
  ScratchDirectory scratch;
  const std::string path = scratch.file("a.safetensors");
  const auto refused = [&](const std::string& bytes) {
    write_file(path, bytes);
    const std::string error = error_of([&] { read_safetensors(path); });
    EXPECT_NE(error.find(path), std::string::npos) << bytes.substr(8, 200);
    return error;
  };
  const auto one = [&](const std::string& entry, std::size_t n) {
    return refused(file_of(R"({"w":)" + entry + "}", n));
  };

  refused("");
  refused("short");
  refused(std::string(100, '\xff'));                           // a header of 2^64 bytes
  refused(std::string("\x00\xe1\xf5\x06\0\0\0\0", 8) + "{}");  // 117 MB
  refused(std::string("\x40\0\0\0\0\0\0\0", 8) + "{}");        // longer than the file
  refused(file_of("", 0));
  refused(file_of("[]", 0));
  refused(file_of("{\"w\":", 0));
  refused(file_of(std::string(20000, '['), 0));
  one(R"({"dtype":"F32","shape":[2]})", 8);
  one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", 8);
  one(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})", 8);
  one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8);
  one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", 8);
  one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8);                    // offsets and shape disagree
  one(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})", 8);                   // past the end
  one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8);                    // reversed
  one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8);                    // a gap before
  one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 8);                    // bytes that belong to no tensor
  one(R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})", 4);  // the product wraps round
  one(R"({"dtype":"F32","shape":[0,9223372036854775807,9],"data_offsets":[0,0]})", 0);
  refused(file_of(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
      12));  // overlapping
  EXPECT_NE(
      refused(
          file_of(
              R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
              12))
          .find("b begins at byte 8 of the data; expected 4"),
      std::string::npos);  // a gap between two tensors
  EXPECT_NE(one(R"({"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]})", 2).find("F8_E4M3"), std::string::npos);
  EXPECT_NE(one(R"({"dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]})", 8).find("5 dimensions"),
            std::string::npos);
}

// The time to read a header must not grow with the square of its length.
TEST(Safetensors, ReadsManyTensorsAtOnce) {
  ScratchDirectory scratch;
  std::string header = "{";
  for (int i = 0; i < 200000; ++i)
    header += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", i > 0 ? "," : "", i);
  write_file(scratch.file("a.safetensors"), file_of(header + "}", 0));
  EXPECT_EQ(read_safetensors(scratch.file("a.safetensors")).size(), 200000u);
}

TEST(Safetensors, LeavesNothingAfterAFailedWrite) {
  ScratchDirectory scratch;
  const NamedTensor wrong("w", {2}, [](std::size_t, std::span<float>) { fail(ErrorCode::internal, "cannot be read"); });
  EXPECT_NE(error_of([&] { write_safetensors(scratch.file("a.safetensors"), {wrong}, {}); }), "");
  EXPECT_NE(error_of([&] { write_safetensors(scratch.file("no/a.safetensors"), {tensor("w", {2})}, {}); }), "");
  EXPECT_EQ(scratch.n_entries(), 0u);
}

/// Names and shapes of the tensors that infer_model checks.
std::vector<NamedTensor> resnet(std::int64_t window, std::vector<int> blocks, bool bottleneck,
                                std::int64_t width = 64) {
  std::vector<NamedTensor> out = {tensor("conv1.weight", {64, 3, window, window}), tensor("fc.weight", {10, 4})};
  for (std::size_t stage = 0; stage < blocks.size(); ++stage)
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string name = fmt::format("layer{}.{}", stage + 1, block);
      out.push_back(tensor(name + ".conv1.weight", {1, 1, 1, 1}));
      out.push_back({name + ".conv2.weight", {width, 64, 3, 3}, NamedTensor::Read()});
      if (bottleneck) out.push_back(tensor(name + ".conv3.weight", {1, 1, 1, 1}));
    }
  return out;
}

nlohmann::json infer_model(const std::vector<NamedTensor>& tensors, const std::string& source) {
  models::TensorShapes shapes;
  for (const NamedTensor& tensor : tensors) shapes[tensor.name] = tensor.shape;
  const Config::Model model = models::infer_resnet(shapes, source);
  return {{"family", model.family}, {"depth", model.depth}, {"stem", model.stem}, {"classes", model.classes}};
}

TEST(Torchvision, ModelIsInferred) {
  const auto model = [](int depth, const char* stem) {
    return nlohmann::json{{"family", "resnet"}, {"depth", depth}, {"stem", stem}, {"classes", 10}};
  };
  EXPECT_EQ(infer_model(resnet(3, {2, 2, 2, 2}, false), "f"), model(18, "cifar"));
  EXPECT_EQ(infer_model(resnet(7, {3, 4, 6, 3}, false), "f"), model(34, "imagenet"));
  EXPECT_EQ(infer_model(resnet(7, {3, 4, 6, 3}, true), "f"), model(50, "imagenet"));
  const auto refused = [](const std::vector<NamedTensor>& tensors) {
    return error_of([&] { infer_model(tensors, "f"); });
  };
  EXPECT_NE(refused({}).find("conv1.weight is missing"), std::string::npos);
  EXPECT_NE(refused(resnet(5, {2, 2, 2, 2}, false)).find("kernel size"), std::string::npos);
  EXPECT_NE(refused(resnet(7, {3, 4, 22, 3}, true)).find("22"), std::string::npos);
  EXPECT_NE(refused(resnet(7, {3, 4, 6, 3}, true, 128)).find("(128, 64, 3, 3)"), std::string::npos);
}

TEST(Torchvision, ExportAndImportKeepTheBytes) {
  ScratchDirectory scratch;
  save_alone(scratch.file("a.h5"), small_model(), small_state());
  const std::vector<NamedTensor> tensors_read = load_all(scratch.file("a.h5"));
  write_safetensors(scratch.file("a.safetensors"), to_torchvision(tensors_read, 1200), {{"format", "pt"}});

  const auto exported = read_safetensors(scratch.file("a.safetensors"));
  const auto counter = std::ranges::find(exported, "bn1.num_batches_tracked", &NamedTensor::name);
  ASSERT_NE(counter, exported.end());
  EXPECT_EQ(counter->values(), std::vector<float>{1200.0f});

  const std::vector<NamedTensor> back = from_torchvision(exported);
  std::vector<NamedTensor> expected;
  for (const NamedTensor& t : tensors_read)
    if (!t.name.starts_with("/optimizer/")) expected.push_back(t);
  ASSERT_EQ(back.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(back[i].name, expected[i].name);
    EXPECT_EQ(back[i].shape, expected[i].shape);
    EXPECT_EQ(back[i].values(), expected[i].values());
  }
}

}  // namespace
}  // namespace lockstep::checkpoint::test
