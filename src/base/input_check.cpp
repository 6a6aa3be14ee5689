#include "base/input_check.h"

#include <sys/stat.h>

#include "lockstep/error.h"

namespace lockstep {

void require_no_input(const std::string& output, std::span<const std::string> inputs) {
  struct stat target {
  }, source{};
  if (::stat(output.c_str(), &target) != 0 || !S_ISREG(target.st_mode)) return;
  for (const std::string& input : inputs) {
    if (::stat(input.c_str(), &source) != 0) continue;
    require(target.st_dev != source.st_dev || target.st_ino != source.st_ino, ErrorCode::usage,
            "{} is an input of this command ({}), which the output would replace: give the output another name", output,
            input);
  }
}

}  // namespace lockstep
