// environment: LOCKSTEP_MAX_ISA=avx2
// also: Algorithms.AllAlgorithms*:Conv2dWidened.*:All/Conv2dBf16Test.*:Matmul.*:LinearCrossEntropy.*:Widen.*:Attention.*
// sanitizers: -Algorithms.*:*Conv2d*:Attention.AgreesWithTheReference
// timeout: 300
// The tests of bf16 and of algorithms as on a processor with AVX2 only.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/cpu/base/amx.h"
#include "kernels/cpu/base/machine.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"

namespace lockstep::cpu {
namespace {

TEST(MaxIsaAvx2, LimitsKernelsAndLibraries) {
  const char* limit = std::getenv("LOCKSTEP_MAX_ISA");
  if (limit == nullptr || std::string(limit) != "avx2") GTEST_SKIP() << "needs LOCKSTEP_MAX_ISA=avx2";
  EXPECT_LE(isa(), Isa::avx2);
  EXPECT_FALSE(bf16_products_are_usable());
  EXPECT_FALSE(amx_is_usable());
  if (detect_isa() == Isa::avx2) {
    EXPECT_EQ(product_instructions(), "AVX2");
  }
}

}  // namespace
}  // namespace lockstep::cpu
