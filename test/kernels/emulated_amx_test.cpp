// program: own
// timeout: 300
// sanitizers: -Algorithms.*:Attention.SameBits*:*/60
// also: Attention.*:*Conv2dBf16*:Algorithms.All*
// Kernels for AMX, with emulated tiles (test/support/emulated_amx.h): runs the tests of their ops once more. The
// Makefile links those tests, and the ops compiled with the emulation, into this program.
#include "test/support/emulated_amx.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "kernels/cpu/base/amx.h"
#include "kernels/cpu/conv2d_bare.h"
#include "lockstep/backend.h"
#include "lockstep/ops/attention.h"

/// Replaces the backend's function in this program.
bool lockstep::cpu::has_amx() { return true; }

namespace lockstep::test {
namespace {

TEST(EmulatedAmx, MultipliesTiles) {
  amx::Configuration configuration{};
  configuration.palette = 1;
  for (int tile = 0; tile < 3; ++tile) configuration.rows[tile] = 16, configuration.row_bytes[tile] = 64;
  amx::Registers registers;
  registers.configure(&configuration);
  Bf16 a[16][32], b[16][16][2];
  float sums[16][16];
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 32; ++k) {
      a[i][k] = to_bf16(static_cast<float>(i - k));
      b[k / 2][i][k % 2] = to_bf16(static_cast<float>(3 * k + i));
      if (k < 16) sums[i][k] = static_cast<float>(i * k);
    }
  registers.load(0, sums, 64);
  registers.load(1, a, 64);
  registers.load(2, b, 64);
  registers.multiply(0, 1, 2);
  registers.store(0, sums, 64);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      int expected = i * j;
      for (int k = 0; k < 32; ++k) expected += (i - k) * (3 * k + j);
      EXPECT_EQ(sums[i][j], static_cast<float>(expected)) << i << ", " << j;
    }
}

TEST(EmulatedAmx, UnconfiguredTilesEndTheTest) {
  float sums[256] = {};
  EXPECT_DEATH(amx::Registers().load(0, sums, 64), "a tile is not configured");
}

std::string attention_in_bf16() {
  return make_backend({.device = "cpu"})
      ->make(AttentionDescription{
          .batch = 1, .sequence = 8, .heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = DType::bf16})
      ->describe();
}

Conv2dDescription convolution_in_bf16() {
  return {.x = {1, 8, 8, 32}, .out_channels = 32, .kernel_size = 3, .padding = 1, .dtype = DType::bf16};
}

/// If they were not chosen, the other tests of this program would test something else.
TEST(EmulatedAmx, KernelsForAmxAreChosen) {
  if (!cpu::amx_is_usable()) GTEST_SKIP() << "this processor has no AVX-512 for bf16";
  EXPECT_NE(attention_in_bf16().find("with AMX"), std::string::npos) << attention_in_bf16();
  EXPECT_TRUE(cpu::amx_convolution_fits(convolution_in_bf16(), cpu::Direction::forward));
}

/// Tests LOCKSTEP_MAX_ISA, which is read whenever an op is made.
TEST(EmulatedAmx, TheLimitOfInstructionsHoldsForKernelsInBf16) {
  if (!cpu::amx_is_usable()) GTEST_SKIP() << "this processor has no AVX-512 for bf16";
  for (const auto& [limit, products] :
       {std::pair{"avx512_bf16", "in tiles of bf16"}, {"avx512", "in tiles of fp32"}, {"avx2", "in tiles of fp32"}}) {
    ASSERT_EQ(setenv("LOCKSTEP_MAX_ISA", limit, 1), 0);
    EXPECT_TRUE(attention_in_bf16().ends_with(products)) << limit << ": " << attention_in_bf16();
    EXPECT_FALSE(cpu::amx_convolution_fits(convolution_in_bf16(), cpu::Direction::forward)) << limit;
  }
  ASSERT_EQ(unsetenv("LOCKSTEP_MAX_ISA"), 0);
  EXPECT_TRUE(cpu::amx_is_usable());
}

}  // namespace
}  // namespace lockstep::test
