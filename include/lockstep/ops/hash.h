// 64-bit hash of memory, to compare replicas: equal bytes have equal hashes on one backend. Two backends may use
// different hash functions (cpu: xxh3; cuda: kernels/cuda/hash.cu). Files are not affected, since their hashes are
// computed on the host.
#pragma once

#include <cstddef>

#include "lockstep/op.h"

namespace lockstep {

class Hash;

struct HashDescription {
  using Op = Hash;
  static constexpr std::string_view kName = "hash";

  std::size_t size_bytes = 0;
};

class Hash : public Op {
 public:
  struct Apply {
    const void* data = nullptr;
    std::uint64_t* hash = nullptr;  // written
  };
  void apply(const Apply& args, const OpMemory& memory, Stream& stream) {
    submit("hash.apply", &Hash::run_apply, args, memory, stream);
  }

 private:
  virtual void run_apply(const Apply& args, const OpMemory& memory, Stream& stream) = 0;
};

}  // namespace lockstep
