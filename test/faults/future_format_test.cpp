// timeout: 120
// sanitizers: no
// The newest checkpoint of a run has a future format. The log names the file and its format, does not call it damaged,
// and the checkpoint before it is used.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "checkpoint/user_block.h"
#include "test/checkpoint/support.h"

namespace lockstep::checkpoint::test {
namespace {

class FutureFormat : public ::testing::Test {
 protected:
  /// Returns the exit status. The output is in output_.
  int train(int max_steps) {
    const char* program = std::getenv("LOCKSTEP");
    const std::string path = scratch_.file("path");
    const int status = std::system(
        fmt::format("{} train jobs/configs/quickstart.yaml model.width=16 data.train=synthetic data.validation= "
                    "data.image_size=8 "
                    "data.synthetic_samples=48 train.global_batch=12 train.epochs=5 checkpoint.every_epochs=0 "
                    "checkpoint.every_steps=2 cpu.threads=1 log.progress=false log.tensorboard=false run.directory={} "
                    "run.name=run train.max_steps={} >{} 2>&1",
                    program != nullptr ? program : "build/lockstep", scratch_.path(), max_steps, path)
            .c_str());
    output_ = read_file(path);
    return WEXITSTATUS(status);
  }
  std::string checkpoint(int step) const { return scratch_.file(fmt::format("run/checkpoints/step-{:08d}.h5", step)); }

  ScratchDirectory scratch_;
  std::string output_;
};

TEST_F(FutureFormat, IsReportedAndSkipped) {
  ASSERT_EQ(train(4), 0) << output_;
  // Its user block must stay valid: the version is at byte 8, and the hash of everything before it is in its last 8
  // bytes.
  std::string bytes = read_file(checkpoint(4));
  bytes[8] = kFormatVersion + 1;
  const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(bytes)).first(kUserBlockBytes - 8));
  std::memcpy(bytes.data() + kUserBlockBytes - 8, &hash, sizeof hash);
  std::ofstream(checkpoint(4), std::ios::binary) << bytes;
  ASSERT_EQ(verify(checkpoint(4)).code, ErrorCode::checkpoint_format) << verify(checkpoint(4)).sentence;

  ASSERT_EQ(train(5), 0) << output_;
  const std::string log = read_file(scratch_.file("run/log.txt"));
  EXPECT_NE(log.find(fmt::format("{} has format version {}; this program reads version {}", checkpoint(4),
                                 kFormatVersion + 1, kFormatVersion)),
            std::string::npos)
      << log;
  EXPECT_NE(log.find(fmt::format("resumed from {} (step 2)", checkpoint(2))), std::string::npos) << log;
}

}  // namespace
}  // namespace lockstep::checkpoint::test
