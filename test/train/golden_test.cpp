// Ten steps of two networks, compared with PyTorch. test/golden/make_golden.py made the figures. Initial weights are
// the same function of the seed in both languages. Training is chaotic, so the bounds are PyTorch's own: the
// differences between its runs in fp32, or in bf16, and its run in fp64.
// timeout: 900
// sanitizers: no
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "comm/world.h"
#include "kernels/cpu/base/simd.h"
#include "test/support/device.h"
#include "test/support/emulator.h"
#include "test/train/golden_places.h"
#include "test/train/small_run.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

/// Repeats each pixel `scale` x `scale` times, to get larger images without another file.
class Enlarged final : public data::ImageSet {
 public:
  Enlarged(std::unique_ptr<data::ImageSet> set, int scale)
      : set_(std::move(set)), info_(set_->info()), scale_(scale), small_(info_.image_bytes()) {
    info_.height *= scale;
    info_.width *= scale;
  }
  const data::ImageSetInfo& info() const override { return info_; }
  void read_image(std::int64_t sample, std::uint32_t epoch, std::span<std::uint8_t> image,
                  std::int32_t& label) const override {
    set_->read_image(sample, epoch, small_, label);
    const int small_width = info_.width / scale_;
    auto out = image.begin();
    for (int h = 0; h < info_.height; ++h)
      for (int w = 0; w < info_.width; ++w)
        out = std::copy_n(small_.begin() + ((h / scale_) * small_width + w / scale_) * info_.channels, info_.channels,
                          out);
  }

 private:
  std::unique_ptr<data::ImageSet> set_;
  data::ImageSetInfo info_;
  int scale_;
  mutable std::vector<std::uint8_t> small_;  // the test reads from one thread
};

/// Tests run in the repository's root.
Json read_golden(const std::string& network) { return Json::parse(read_file("test/golden/" + network + ".json")); }

Config config_of(const Json& golden, Precision precision) {
  Config config;
  config.precision = precision;
  config.run.seed = golden["seed"];
  config.model.depth = golden["depth"];
  config.model.stem = golden["stem"];
  config.model.classes = golden["classes"];
  config.model.zero_gamma = golden["zero_gamma"];
  config.data.train = "data/samples/cifar10_train.h5";
  config.train.global_batch = golden["batch"];
  config.train.label_smoothing = golden["label_smoothing"];
  config.optimizer.learning_rate = golden["learning_rate"];
  config.optimizer.momentum = golden["momentum"];
  config.optimizer.weight_decay = golden["weight_decay"];
  config.cpu.threads = 1;
  return config;
}

/// The Euclidean distance to PyTorch's fp64 values at the stored places of all tensors. `norm` receives the norm of
/// PyTorch's values.
template <typename Get>
double distance(const Json& first_step, const char* what, const Get& get, double& norm) {
  double difference = 0, squares = 0;
  for (const auto& [name, tensor] : first_step.items()) {
    const std::vector<float> ours = get(name);
    const std::vector<double> exact = tensor[what];
    for (std::size_t i = 0; i < exact.size(); ++i) {
      difference += std::pow(static_cast<double>(ours[test::place(i, ours.size())]) - exact[i], 2);
      squares += exact[i] * exact[i];
    }
  }
  norm = std::sqrt(squares);
  return std::sqrt(difference);
}

/// Returns the distance of the first step's gradients to those in fp64.
double expect_as_in_pytorch(const char* network, Precision precision, std::size_t n_steps,
                            const std::unique_ptr<Backend>& backend) {
  const Json golden = read_golden(network);
  // tf32 has as many significant bits as fp16, so it has the same bounds.
  const Json& theirs = golden.at(std::string(name(precision == Precision::tf32 ? Precision::fp16 : precision)));
  const std::vector<double> losses = golden["losses"], spread = theirs["spread"];
  const Json& first_step = golden["first_step"];

  const auto world = comm::single_world();
  const Config config = config_of(golden, precision);
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  test::SmallRun run(config, *backend, *communicator,
                     std::make_shared<Enlarged>(data::open_image_set(config.data.train), golden["scale"]));
  EXPECT_EQ(first_step.size(), run.plan().parameters().parameters().size());
  n_steps = std::min(n_steps, losses.size());
  double gradient_error = 0;

  for (std::size_t step = 0; step < n_steps; ++step) {
    const double loss = run.step(static_cast<std::int64_t>(step));
    const double apart = std::abs(loss / losses[step] - 1);
    std::printf("step %2zu: loss %.7f, fp64 %.7f, apart %.1e, PyTorch's %.1e\n", step + 1, loss, losses[step], apart,
                spread[step]);
    EXPECT_LT(apart, step == 0 && precision == Precision::fp32 ? 2e-6 : 3 * spread[step]) << "step " << step + 1;
    if (step > 0) continue;
    const auto check = [&](const char* what, double theirs_error, const auto& get) {
      double norm = 0;
      const double error = distance(first_step, what, get, norm);
      std::printf("step  1: %ss %.2e from fp64, PyTorch's %.2e, norm %.3g\n", what, error, theirs_error, norm);
      EXPECT_LT(error, 2 * theirs_error) << what;
      return error;
    };
    gradient_error = check("gradient", theirs["gradient_error"], [&](const std::string& n) {
      std::vector<float> values = test::ReplicaProbe::gradient(run.replica(), n);
      for (float& value : values) value /= run.replica().loss_scale().scale;
      return values;
    });
    check("weight", theirs["weight_error"],
          [&](const std::string& n) { return test::ReplicaProbe::parameter(run.replica(), n); });
  }
  return gradient_error;
}

class Golden : public testing::TestWithParam<std::tuple<const char*, Precision>> {};

TEST_P(Golden, TenStepsAsInPyTorch) {
  const auto [network, precision] = GetParam();
  const BackendOptions device = test::tested_device();
  const bool is_of_devices = precision == Precision::tf32 || precision == Precision::fp16;
  if (is_of_devices && device.device == "cpu") GTEST_SKIP() << "the cpu does not compute in " << name(precision);
  expect_as_in_pytorch(network, precision, test::in_emulator() ? 2 : 10, make_backend(device));
}

#ifdef LOCKSTEP_CUDA
/// The CUDA kernels, compiled for the host, with plain loops instead of cuDNN. This tests the levels, passes and loss
/// scale.
///
/// cuDNN's fused gradient recomputes the mask of ReLU from the statistics in fp32, while the fused forward pass rounds
/// scale and bias to 16 bits. With fewer fusions, the mask comes from the z that the forward pass stored. The few
/// values near zero whose mask differs do not take the gradients away from those in fp64.
TEST(GoldenOnHost, TheFirstStepInHalfPrecisionAsInPyTorch) {
  expect_as_in_pytorch("resnet18_32", Precision::bf16, 1, test::make_cuda_on_host_backend());
  for (const Precision precision : {Precision::fp16, Precision::bf16})
    expect_as_in_pytorch("resnet50_64", precision, 1, test::make_cuda_on_host_backend());
  const auto error = [](const char* level) {
    return expect_as_in_pytorch("resnet18_32", Precision::fp16, 1, test::make_cuda_on_host_backend(level));
  };
  const double stored = error("statistics"), recomputed = error("chain");
  EXPECT_NE(recomputed, stored);
  EXPECT_LT(recomputed, 1.1 * stored);
}
#endif

/// Plans the network, so that `algorithms` stores the choices.
void plan(const Json& golden, Precision precision, const std::shared_ptr<Algorithms>& algorithms) {
  const auto world = comm::single_world();
  const Config config = config_of(golden, precision);
  const auto backend = make_backend({.device = "cpu", .threads = 1, .algorithms = algorithms});
  const auto communicator = comm::make_communicator(config.comm, *world, *backend);
  const test::SmallRun run(config, *backend, *communicator,
                           std::make_shared<Enlarged>(data::open_image_set(config.data.train), golden["scale"]));
}

bool is_layout(const std::string& key) { return key.starts_with("layout"); }

/// Uses `algorithm` for all convolutions that it fits, and `layout_of(i)` for the i-th shape of activations.
template <typename LayoutOf>
std::unique_ptr<Backend> backend_with(const Json& golden, Precision precision, const std::string& algorithm,
                                      const LayoutOf& layout_of) {
  const auto algorithms = std::make_shared<Algorithms>();
  algorithms->enable_timing();  // collects the keys
  plan(golden, precision, algorithms);
  Algorithms::Choices choices;
  for (const auto& [key, choice] : algorithms->choices())
    if (is_layout(key)) choices[key] = layout_of(choices.size());
  algorithms->remember(choices);
  plan(golden, precision, algorithms);
  choices = algorithms->choices();
  for (auto& [key, choice] : choices)
    if (!is_layout(key)) choice = algorithm;
  return make_backend({.device = "cpu", .threads = 1, .algorithms = std::make_shared<Algorithms>(choices)});
}

TEST(GoldenAlgorithms, MixedLayoutsAndMatmulsGiveTheFirstStepOfPyTorch) {
  if (test::in_emulator()) GTEST_SKIP() << "the steps of Golden take long enough in an emulator";
  for (const auto& [network, is_first_nhwc] : {std::pair("resnet18_32", true), std::pair("resnet50_64", false)}) {
    const auto every_second = [&](std::size_t i) { return (i % 2 == 0) == is_first_nhwc ? "nhwc" : "nchw16c"; };
    expect_as_in_pytorch(network, Precision::fp32, 1,
                         backend_with(read_golden(network), Precision::fp32, "matmul", every_second));
  }
}

/// Winograd's rounding errors are larger than those of other algorithms, but seven steps stay within the same bounds.
/// Later ones are those of chance: PyTorch's own runs are up to 29 % apart.
TEST(GoldenAlgorithms, WinogradGivesSevenStepsAsInPyTorch) {
  if (test::in_emulator()) GTEST_SKIP() << "seven steps of two networks take hours in an emulator";
  // For convolutions that Winograd does not fit, oneDNN has fast nchw16c implementations only with AVX-512.
  const auto blocks = [](std::size_t) { return cpu::isa() == cpu::Isa::avx512 ? "nchw16c" : "nhwc"; };
  for (const char* network : {"resnet18_32", "resnet50_64"})
    expect_as_in_pytorch(network, Precision::fp32, 7,
                         backend_with(read_golden(network), Precision::fp32, "winograd", blocks));
  expect_as_in_pytorch("resnet18_32", Precision::bf16, 7,
                       backend_with(read_golden("resnet18_32"), Precision::bf16, "winograd", blocks));
}

INSTANTIATE_TEST_SUITE_P(Networks, Golden,
                         testing::Combine(testing::Values("resnet18_32", "resnet50_64"),
                                          testing::Values(Precision::fp32, Precision::bf16, Precision::tf32,
                                                          Precision::fp16)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::string("_") +
                                  std::string(name(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace lockstep
