// Attention by our own kernels (attention.cu), for every type and size, without tensor cores. Work that no query needs,
// because its keys are later or belong to earlier documents, is skipped. Every element of y, dq, dk and dv is summed by
// one thread, so the bits are the same in every run.
#pragma once

#include "lockstep/ops/attention.h"

namespace lockstep::cuda {

/// log_sum_exp (batch, heads, sequence) may be null: not kept.
void attention_forward(const AttentionDescription& d, const Attention::Forward& args, float* log_sum_exp,
                       Stream& stream);

/// Workspace of attention_backward: delta, (batch, heads, sequence).
std::size_t attention_backward_workspace_bytes(const AttentionDescription& d);
void attention_backward(const AttentionDescription& d, const Attention::Backward& args, const float* log_sum_exp,
                        float* delta, Stream& stream);

}  // namespace lockstep::cuda
