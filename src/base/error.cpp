// The table of src/errors.def.
#include "lockstep/error.h"

#include <array>
#include <cstddef>

namespace lockstep {

const ErrorEntry& entry(ErrorCode code) {
  static constexpr auto kTable = std::to_array<ErrorEntry>({
#define LOCKSTEP_ERROR(code, exit_status, meaning, remedy) {#code, exit_status, meaning, remedy},
#include "errors.def"
#undef LOCKSTEP_ERROR
  });
  return kTable.at(static_cast<std::size_t>(code));
}

}  // namespace lockstep
