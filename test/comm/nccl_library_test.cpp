// Finding NCCL. Every failure ends with a message that says what to do.
#include "comm/nccl_library.h"

#include <gtest/gtest.h>

#include "comm/nccl_communicator.h"
#include "lockstep/error.h"
#include "test/comm/fake_nccl.h"

namespace lockstep::comm {
namespace {

std::string failure_to_load() {
  try {
    (void)nccl();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_NE(std::string(error.what()).find("set comm.backend=staged"), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "NCCL was loaded";
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A library stays loaded, so the failures come first. Loading is retried after each of them.
TEST(NcclLibrary, IsSearchedUntilFound) {
  ::setenv("NCCL_HOME", "/nowhere", 1);
  std::string reason = failure_to_load();
  EXPECT_TRUE(contains(reason, "libnccl.so.2 cannot be loaded from NCCL_HOME=/nowhere")) << reason;
  EXPECT_TRUE(contains(reason, "/nowhere/lib/libnccl.so.2: cannot open shared object file")) << reason;
  EXPECT_EQ(nccl_library_text(), reason);

  {
    const NcclHome another(folder_of_tests() / "faults" / "fault_injection.so");
    reason = failure_to_load();
    EXPECT_TRUE(contains(reason, "libnccl.so.2 is NCCL of unknown version, but Lockstep needs 2.20 or newer"))
        << reason;
  }
  const NcclHome fake;
  ::setenv("FAKE_NCCL_VERSION", "21903", 1);
  reason = failure_to_load();
  EXPECT_TRUE(contains(reason, "libnccl.so.2 is NCCL 2.19.3, but Lockstep needs 2.20 or newer")) << reason;

  ::setenv("FAKE_NCCL_VERSION", "22105", 1);
  EXPECT_EQ(nccl().version, 22105);
  EXPECT_FALSE(nccl().has_windows()) << "they came with 2.27";
  EXPECT_EQ(nccl_library_text(), "NCCL 2.21.5 (" + (fake.path() / "lib/libnccl.so.2").string() + ")");
}

TEST(NcclLibrary, ReadsOldAndNewVersionNumbers) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(23000), "2.30.0");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

}  // namespace
}  // namespace lockstep::comm
