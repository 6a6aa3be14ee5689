// What the CUDA backend adds to cuDNN's graphs of attention, compiled for the host: the lists of documents, and the
// division of the backward pass. attention_test.cpp tests that the results are correct.
#ifdef LOCKSTEP_CUDA
#define cuda cuda_on_host
#include "kernels/cuda/attention.h"
#undef cuda

#include <gtest/gtest.h>

#include <vector>

#include "test/support/device.h"

namespace lockstep::cuda_on_host {
namespace {

using Numbers = std::vector<std::int32_t>;

struct Lists {
  Numbers length, qkv_offset, y_offset, log_sum_exp_offset;
  std::int32_t are_too_many = -1;
};

constexpr int kCapacity = 5, kStride = 40;

/// The lists of a batch with 6 tokens per sample and two samples per list.
std::vector<Lists> lists_of(const Numbers& document_start) {
  const auto backend = test::make_cuda_on_host_backend();
  test::Device device(*backend);
  const int n_lists = static_cast<int>(document_start.size()) / 12;
  const std::size_t n = static_cast<std::size_t>(n_lists) * kStride;
  const DocumentList list{.memory = device.garbage<std::int32_t>(n),
                          .stride = kStride,
                          .qkv_offset = 8,
                          .y_offset = 16,
                          .log_sum_exp_offset = 24,
                          .are_too_many = 32,
                          .sequence = 6,
                          .n_tokens = 12,
                          .capacity = kCapacity,
                          .elements = {100, 10, 3}};
  attention_documents(device.upload(document_start), list, n_lists, device.stream());
  const Numbers memory = device.download(list.memory, n);
  std::vector<Lists> out;
  for (auto at = memory.begin(); at != memory.end(); at += kStride)
    out.push_back({{at, at + kCapacity},
                   {at + 8, at + 8 + kCapacity + 1},
                   {at + 16, at + 16 + kCapacity + 1},
                   {at + 24, at + 24 + kCapacity + 1},
                   at[32]});
  return out;
}

TEST(CudaAttention, ListsDocuments) {
  const std::vector<Lists> lists = lists_of({0, 0, 0, 3, 3, 3, 0, 1, 1, 1, 1, 1,    // documents of 3, 3, 1 and 5 tokens
                                             0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});  // one document per sample
  EXPECT_EQ(lists[0].length, (Numbers{3, 3, 1, 5, 0}));
  EXPECT_EQ(lists[0].qkv_offset, (Numbers{0, 300, 600, 700, 1200, 1200}));
  EXPECT_EQ(lists[0].y_offset, (Numbers{0, 30, 60, 70, 120, 120}));
  EXPECT_EQ(lists[0].log_sum_exp_offset, (Numbers{0, 9, 18, 21, 36, 36}));
  EXPECT_EQ(lists[0].are_too_many, 0);
  EXPECT_EQ(lists[1].length, (Numbers{6, 6, 0, 0, 0}));
  EXPECT_EQ(lists[1].y_offset, (Numbers{0, 60, 120, 120, 120, 120}));
  EXPECT_EQ(lists[1].are_too_many, 0);
}

TEST(CudaAttention, AListThatIsTooShortIsEmpty) {
  const std::vector<Lists> lists = lists_of({0, 1, 2, 3, 3, 3, 0, 0, 0, 0, 0, 0,    // 5: the most allowed
                                             0, 1, 2, 3, 4, 4, 0, 0, 0, 0, 0, 0});  // 6
  EXPECT_EQ(lists[0].length, (Numbers{1, 1, 1, 3, 6}));
  EXPECT_EQ(lists[0].are_too_many, 0);
  EXPECT_EQ(lists[1].length, Numbers(kCapacity, 0));
  EXPECT_EQ(lists[1].qkv_offset, Numbers(kCapacity + 1, 0));
  EXPECT_EQ(lists[1].are_too_many, 1);
}

/// On the host, the backward graph of one sample and one key-value head needs half of the limit of 2 KiB.
TEST(CudaAttention, DividesTheBackwardPass) {
  const auto backend = test::make_cuda_on_host_backend();
  const auto described = [&](std::int64_t batch, std::int64_t kv_heads, DType dtype) {
    return backend
        ->make(AttentionDescription{
            .batch = batch, .sequence = 16, .heads = 2 * kv_heads, .kv_heads = kv_heads, .head_dim = 8, .dtype = dtype})
        ->describe();
  };
  EXPECT_EQ(described(1, 2, DType::bf16),
            "attention (1, 16), 4 heads, 2 of keys and values, of 8, bf16: cuDNN, forward loops; backward loops");
  EXPECT_EQ(described(6, 1, DType::bf16),
            "attention (6, 16), 2 heads, 1 of keys and values, of 8, bf16: cuDNN, forward loops; backward loops, "
            "by 2 of 6 samples");
  EXPECT_EQ(described(2, 3, DType::fp16),
            "attention (2, 16), 6 heads, 3 of keys and values, of 8, fp16: cuDNN, forward loops; backward loops, "
            "by 1 of 2 samples, by 2 of 6 heads");
  EXPECT_EQ(described(2, 3, DType::fp32), "attention (2, 16), 6 heads, 3 of keys and values, of 8, fp32: own kernels");
}

}  // namespace
}  // namespace lockstep::cuda_on_host
#endif
