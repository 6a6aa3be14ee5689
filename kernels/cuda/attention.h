// Attention by our own kernels (attention.cu), for every type and size, without tensor cores. Work that no query needs,
// because its keys are later or belong to earlier documents, is skipped. Every element of y, dq, dk and dv is summed by
// one thread, so the bits are the same in every run.
#pragma once

#include "lockstep/ops/attention.h"

namespace lockstep::cuda {

/// Lists of documents in device memory, one for the samples of each graph (attention_bare.h), `stride` numbers apart. A
/// list begins with the lengths; its other parts are at these offsets.
struct DocumentList {
  std::int32_t* memory = nullptr;
  int stride = 0, qkv_offset = 0, y_offset = 0, log_sum_exp_offset = 0, are_too_many = 0;
  int sequence = 0, n_tokens = 0;  // of the samples of a list
  int capacity = 0;                // documents
  int elements[3] = {};            // per token: in the packed matrix, y and log_sum_exp
};
void attention_documents(const std::int32_t* document_start, const DocumentList& list, int n_lists, Stream& stream);

/// mask (samples, sequence, sequence), 16 bits: 0 where a token sees another one of its document and window, and else
/// the lowest finite number. Later tokens are not masked. The sequence is a multiple of 8.
void attention_mask(const AttentionDescription& d, const std::int32_t* document_start, std::int64_t samples, void* mask,
                    Stream& stream);

/// Sample s is computed only if flag s / samples_per_flag is not 0. If `flags` is null, all samples are.
struct AttentionCondition {
  const std::int32_t* flags = nullptr;
  int stride = 0;  // from one flag to the next
  int samples_per_flag = 1;
};

/// log_sum_exp (batch, heads, sequence) is not kept if it is null.
void attention_forward(const AttentionDescription& d, const Attention::Forward& args, float* log_sum_exp,
                       const AttentionCondition& condition, Stream& stream);

/// Workspace of attention_backward: delta, (batch, heads, sequence).
std::size_t attention_backward_workspace_bytes(const AttentionDescription& d);
void attention_backward(const AttentionDescription& d, const Attention::Backward& args, const float* log_sum_exp,
                        float* delta, const AttentionCondition& condition, Stream& stream);

}  // namespace lockstep::cuda
