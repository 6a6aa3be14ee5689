// xxh3 of memory, to compare replicas.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <memory>

#include "kernels/cpu/base/context.h"
#include "lockstep/ops/hash.h"

namespace lockstep::cpu {
namespace {

class CpuHash final : public Hash {
 public:
  explicit CpuHash(const HashDescription& d) : size_bytes_(d.size_bytes) {}

  std::string describe() const override { return "xxh3, 64 bits"; }

  void run_apply(const Apply& args, const OpMemory&, Stream&) override {
    *args.hash = XXH3_64bits(args.data, size_bytes_);
  }

 private:
  std::size_t size_bytes_;
};

}  // namespace

std::unique_ptr<Hash> make_hash(const HashDescription& d, const CpuContext&) { return std::make_unique<CpuHash>(d); }

}  // namespace lockstep::cpu
