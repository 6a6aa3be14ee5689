// The cpu backend itself: memory, freezing, streams, its choices of threads and layout, and the layout and modes of
// matmul.
#include "kernels/cpu/backend.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>
#include <vector>

#include "kernels/cpu/base/machine.h"
#include "lockstep/error.h"
#include "lockstep/ops/matmul.h"
#include "lockstep/philox.h"
#include "test/support/tensor.h"

namespace lockstep::cpu {
namespace {

std::unique_ptr<Backend> one_thread() {
  BackendOptions options;
  options.device = "cpu";
  options.threads = 1;
  return cpu::make_backend(options);
}

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error was thrown";
  return ErrorCode::internal;
}

TEST(CpuMemory, IsZeroedAlignedAndOfTheRequestedSize) {
  const auto backend = one_thread();
  for (const std::size_t size_bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{5} << 20}) {
    const auto memory = backend->allocate(size_bytes, "test");
    EXPECT_EQ(memory->size_bytes(), size_bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 64, 0u);
    auto* const bytes = static_cast<unsigned char*>(memory->data());
    EXPECT_TRUE(std::all_of(bytes, bytes + size_bytes, [](unsigned char b) { return b == 0; }));
    std::memset(bytes, 1, size_bytes);
  }
}

TEST(CpuMemory, IsRefusedWhileFrozenOrIfItDoesNotFit) {
  const auto backend = one_thread();
  backend->freeze();
  EXPECT_EQ(code_of([&] { (void)backend->allocate(64, "gradients"); }), ErrorCode::internal);
  backend->unfreeze();
  const auto held = backend->allocate(64, "gradients");
  // Pages are mapped when they are touched: memory that the machine does not have must be refused here, not in the
  // first step.
  const std::size_t all = backend->device().memory_bytes;
  EXPECT_EQ(code_of([&] { (void)backend->allocate(all, "activations"); }), ErrorCode::out_of_memory);
  EXPECT_EQ(code_of([&] { (void)backend->allocate(std::numeric_limits<std::size_t>::max(), "activations"); }),
            ErrorCode::out_of_memory);
  try {
    (void)backend->allocate(all, "activations");
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("activations: "), std::string::npos) << error.what();
  }
}

TEST(CpuMemory, IsReturnedToTheSystem) {
  const auto backend = one_thread();
  const std::size_t most = backend->device().memory_bytes / 4 * 3;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(backend->allocate(most, "test")->size_bytes(), most);
}

TEST(CpuStream, CopiesFillsAndRecords) {
  const auto backend = one_thread();
  const auto stream = backend->make_stream();
  const auto event = backend->make_event();
  EXPECT_TRUE(event->is_done());
  const auto memory = backend->allocate(4 * sizeof(float), "test");
  const std::vector<float> values{1, 2, 3, 4};
  std::vector<float> back(4);
  backend->copy(memory->data(), values.data(), 16, *stream);
  backend->fill_zero(static_cast<float*>(memory->data()) + 1, 8, *stream);
  event->record(*stream);
  stream->wait(*event);
  EXPECT_TRUE(event->is_done());
  backend->copy(back.data(), memory->data(), 16, *stream);
  stream->synchronize();
  EXPECT_EQ(back, (std::vector<float>{1, 0, 0, 4}));
}

TEST(CpuThreads, AreTheCoresOfARank) {
  EXPECT_EQ(threads_of_rank(8, 8, 1), 8);
  EXPECT_EQ(threads_of_rank(8, 8, 4), 2);  // the ranks are not bound: they share the cores
  EXPECT_EQ(threads_of_rank(2, 8, 4), 2);  // bound to two cores each
  EXPECT_EQ(threads_of_rank(8, 8, 3), 2);
  EXPECT_EQ(threads_of_rank(2, 2, 7), 1);  // more ranks than cores
  EXPECT_EQ(threads_of_rank(1, 64, 64), 1);
  EXPECT_EQ(threads_of_rank(4, 4, 0), 4);
  EXPECT_GE(threads_of_this_rank(1), 1);
  EXPECT_EQ(threads_of_this_rank(1 << 20), 1);
}

TEST(ProcessorName, IsThatOfX86OrFollowsFromTheNumbersOfArm) {
  const auto name_in = [](const std::string& text) {
    std::istringstream cpuinfo(text);
    return processor_name(cpuinfo);
  };
  EXPECT_EQ(name_in("processor\t: 0\nmodel name\t: AMD EPYC 9554\nflags\t\t: fpu\n"), "AMD EPYC 9554");
  const std::string arm = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n";
  EXPECT_EQ(name_in(arm + "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n"), "ARM Neoverse-V2");
  EXPECT_EQ(name_in(arm + "CPU part\t: 0xfff\n"), "ARM processor 0x41:0xfff");
  EXPECT_EQ(name_in(""), "unknown processor");
}

TEST(CpuThreads, FollowTheOptions) {
  BackendOptions options;
  options.threads = 3;
  const auto backend = cpu::make_backend(options);
  EXPECT_EQ(omp_get_max_threads(), 3);
  EXPECT_NE(backend->device().name.find("3 threads"), std::string::npos) << backend->device().name;
  EXPECT_NE(one_thread()->device().name.find("1 thread,"), std::string::npos);
  options.threads = -1;
  EXPECT_EQ(code_of([&] { (void)cpu::make_backend(options); }), ErrorCode::op_description);
  options.threads = 1;
  options.device = "cuda";
  EXPECT_EQ(code_of([&] { (void)cpu::make_backend(options); }), ErrorCode::not_supported);
}

TEST(CpuBackend, ReportsItselfAndItsLibraries) {
  const auto backend = one_thread();
  EXPECT_EQ(backend->name(), "cpu");
  EXPECT_GT(backend->device().memory_bytes, std::size_t{1} << 20);
  ASSERT_EQ(backend->device().libraries.size(), 1u);
#ifdef LOCKSTEP_DNNL
  EXPECT_EQ(backend->device().libraries[0].rfind("oneDNN 3.", 0), 0u) << backend->device().libraries[0];
#else
  EXPECT_EQ(backend->device().libraries[0], "oneDNN none");
#endif
}

TEST(CpuBackend, UsesBlocksOnlyForFullBlocksOfChannels) {
  const auto backend = one_thread();
  EXPECT_EQ(backend->activation_layout({32, 32, 32, 3}, DType::fp32), Layout::nhwc);
  EXPECT_EQ(backend->activation_layout({32, 32, 32, 40}, DType::fp32), Layout::nhwc);
  EXPECT_EQ(backend->activation_layout({32, 64}, DType::fp32), Layout::nhwc);
  const bool has_blocks =
      backend->device().name.find("AVX-512") != std::string::npos && backend->device().libraries[0] != "oneDNN none";
  EXPECT_EQ(backend->activation_layout({32, 32, 32, 64}, DType::bf16), Layout::nhwc);
  EXPECT_EQ(backend->activation_layout({32, 32, 32, 64}, DType::fp32), has_blocks ? Layout::nchw16c : Layout::nhwc);
}

// ---------------------------------------------------------------------------------------------------------------

std::vector<float> random_values(std::size_t n, std::uint32_t seed) {
  const Philox philox(seed, RandomPurpose::synthetic, 0, 0);
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * philox.uniform(i) - 1);
  return values;
}

/// Memory of a backend that contains `values`, or NaN if there are none.
class Buffer {
 public:
  Buffer(Backend& backend, std::size_t n, float value = std::numeric_limits<float>::quiet_NaN())
      : memory_(backend.allocate(n * sizeof(float), "test")), n_(n) {
    std::fill_n(data(), n, value);
  }
  Buffer(Backend& backend, const std::vector<float>& values) : Buffer(backend, values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  float* data() { return static_cast<float*>(memory_->data()); }
  std::vector<float> values() { return {data(), data() + n_}; }

 private:
  std::unique_ptr<Memory> memory_;
  std::size_t n_;
};

/// sum_i a(i) b(i) in double, plus `offset`; fp32 sums in any order are within 1e-6 of the terms' magnitudes.
template <typename A, typename B>
void expect_dot(float got, std::int64_t n, double offset, const A& a, const B& b, const char* what) {
  double sum = offset, magnitude = std::abs(offset);
  for (std::int64_t i = 0; i < n; ++i) {
    sum += double{a(i)} * b(i);
    magnitude += std::abs(double{a(i)} * b(i));
  }
  ASSERT_TRUE(std::abs(got - sum) <= 1e-6 * magnitude) << what << ": expected " << sum << ", found " << got;
}

class CpuMatmulModes : public ::testing::TestWithParam<std::tuple<MatmulDescription, int>> {};

TEST_P(CpuMatmulModes, MatchLoopsInDouble) {
  const auto& [d, threads] = GetParam();
  BackendOptions options;
  options.threads = threads;
  const auto backend = cpu::make_backend(options);
  const auto op = backend->make(d);
  SCOPED_TRACE(op->describe());
  EXPECT_EQ(op->describe().find("ref:"), std::string::npos);
  const std::int64_t rows = d.rows, in = d.in_features, out = d.out_features;
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const auto x = random_values(size(rows * in), 1), w = random_values(size(out * in), 2);
  const auto bias = random_values(size(out), 3), dy = random_values(size(rows * out), 4);
  const auto layout = op->weight_layout();

  const OpMemoryRequirements requirements = op->memory_requirements();
  Buffer workspace(*backend, std::max(requirements.forward_workspace_bytes, requirements.backward_workspace_bytes) / 4);
  Buffer x_memory(*backend, x), bias_memory(*backend, bias), dy_memory(*backend, dy);
  Buffer y(*backend, size(rows * out)), weight(*backend, layout->n_elements());
  layout->pack(w, weight.data());
  std::vector<float> unpacked(w.size());
  layout->unpack(weight.data(), unpacked);
  EXPECT_EQ(unpacked, w);
  const auto stream = backend->make_stream();
  const OpMemory memory{workspace.data(), nullptr};

  op->forward(
      {.x = x_memory.data(), .weight = weight.data(), .bias = d.bias ? bias_memory.data() : nullptr, .y = y.data()},
      memory, *stream);
  for (std::int64_t m = 0; m < rows; ++m)
    for (std::int64_t k = 0; k < out; ++k)
      expect_dot(
          y.values()[size(m * out + k)], in, d.bias ? bias[size(k)] : 0.0f,
          [&](std::int64_t i) { return x[size(m * in + i)]; }, [&](std::int64_t i) { return w[size(k * in + i)]; },
          "y");

  for (const GradientMode mode : {GradientMode::overwrite, GradientMode::accumulate, GradientMode::skip}) {
    const float before = mode == GradientMode::overwrite ? std::numeric_limits<float>::quiet_NaN() : 0.5f;
    const double offset = mode == GradientMode::overwrite ? 0.0 : 0.5;
    Buffer dx(*backend, x.size(), before), dbias(*backend, bias.size(), before);
    Buffer dweight(*backend, layout->n_elements(), before);
    if (offset != 0) layout->pack(std::vector<float>(w.size(), 0.5f), dweight.data());
    op->backward({.dy = dy_memory.data(),
                  .x = x_memory.data(),
                  .weight = weight.data(),
                  .dx = dx.data(),
                  .dx_mode = mode,
                  .dweight = dweight.data(),
                  .dbias = d.bias ? dbias.data() : nullptr,
                  .parameter_mode = mode},
                 memory, *stream);
    std::vector<float> dw(w.size());
    layout->unpack(dweight.data(), dw);
    const auto dx_values = dx.values(), dbias_values = dbias.values();
    if (mode == GradientMode::skip) {
      for (const auto& values : {dx_values, dbias_values, dw})
        EXPECT_EQ(values, std::vector<float>(values.size(), 0.5f));
      continue;
    }
    for (std::int64_t k = 0; k < out; ++k) {
      const auto column = [&](std::int64_t m) { return dy[size(m * out + k)]; };
      if (d.bias)
        expect_dot(
            dbias_values[size(k)], rows, offset, column, [](std::int64_t) { return 1.0f; }, "dbias");
      for (std::int64_t i = 0; i < in; ++i)
        expect_dot(
            dw[size(k * in + i)], rows, offset, column, [&](std::int64_t m) { return x[size(m * in + i)]; }, "dweight");
    }
    if (!d.input_gradient) continue;
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t i = 0; i < in; ++i)
        expect_dot(
            dx_values[size(m * in + i)], out, offset, [&](std::int64_t k) { return dy[size(m * out + k)]; },
            [&](std::int64_t k) { return w[size(k * in + i)]; }, "dx");
  }
}

MatmulDescription matmul(std::int64_t rows, std::int64_t in, std::int64_t out, bool bias, bool input_gradient) {
  MatmulDescription d;
  d.rows = rows;
  d.in_features = in;
  d.out_features = out;
  d.bias = bias;
  d.input_gradient = input_gradient;
  return d;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuMatmulModes,
    ::testing::Combine(::testing::Values(matmul(32, 512, 10, true, true), matmul(1, 1, 1, true, true),
                                         matmul(3, 17, 33, false, true), matmul(7, 64, 48, true, false)),
                       ::testing::Values(1, 2)));

TEST(CpuMatmul, RejectsImpossibleDescriptions) {
  const auto backend = one_thread();
  EXPECT_EQ(code_of([&] { (void)backend->make(matmul(0, 4, 4, true, true)); }), ErrorCode::op_description);
  MatmulDescription d = matmul(4, 4, 4, true, true);
  d.dtype = DType::fp16;
  EXPECT_EQ(code_of([&] { (void)backend->make(d); }), ErrorCode::not_supported);
  d.dtype = DType::fp32;
  d.weight_layout = backend->make(matmul(4, 5, 4, true, true))->weight_layout();
  EXPECT_EQ(code_of([&] { (void)backend->make(d); }), ErrorCode::op_description);
}

}  // namespace
}  // namespace lockstep::cpu
