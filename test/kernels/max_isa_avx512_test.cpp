// environment: LOCKSTEP_MAX_ISA=avx512
// also: Algorithms.AllAlgorithms*:Conv2dWidened.*:All/Conv2dBf16Test.*:Matmul.*:LinearCrossEntropy.*:Widen.*:Attention.*
// sanitizers: -Algorithms.*:*Conv2d*:Attention.AgreesWithTheReference
// timeout: 300
// The tests of bf16 and of algorithms as on a processor with AVX-512 without bf16.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/cpu/base/amx.h"
#include "kernels/cpu/base/machine.h"
#include "kernels/cpu/base/product.h"
#include "kernels/cpu/base/simd.h"

namespace lockstep::cpu {
namespace {

TEST(MaxIsaAvx512, LimitsKernelsAndLibraries) {
  const char* limit = std::getenv("LOCKSTEP_MAX_ISA");
  if (limit == nullptr || std::string(limit) != "avx512") GTEST_SKIP() << "needs LOCKSTEP_MAX_ISA=avx512";
  EXPECT_LE(isa(), Isa::avx512);
  EXPECT_FALSE(bf16_products_are_usable());
  EXPECT_FALSE(amx_is_usable());
  if (kHasOnednn) {
    EXPECT_EQ(product_type(DType::bf16), DType::fp32);
  }
  if (detect_isa() == Isa::avx512) {
    EXPECT_EQ(product_instructions(), "AVX-512");
  }
}

}  // namespace
}  // namespace lockstep::cpu
